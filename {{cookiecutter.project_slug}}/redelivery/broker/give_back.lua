-- Put a message back, or elsewhere. ARGV: its tag; its lease as it was seen, or the score where there was none; the
-- list, LPUSH or RPUSH, the text; a record for the kills, or ''. Returns whether it did.
local tag, seen = ARGV[3], ARGV[4]
if seen ~= (leased(tag) or redis.call('ZSCORE', index, tag)) then return 0 end
redis.call('HDEL', unacked, tag) -- the first to write: a full Redis then takes the rest too
redis.call('ZREM', index, tag)
redis.call('HDEL', leases, tag)
redis.call(ARGV[6], ARGV[5], ARGV[7])
if ARGV[8] ~= '' then redis.call('LPUSH', prefix .. 'redelivery.kills', ARGV[8]) end
return 1
