-- Put a message back, or elsewhere. ARGV: its tag; the lease as it was seen, or the score where there was none, or ''
-- for any of this worker's; the list, LPUSH or RPUSH, the text; a record for the kills, or ''. Returns whether it did.
local tag, seen = ARGV[3], ARGV[4]
local lease, owner = valid(tag)
local score = redis.call('ZSCORE', index, tag)
if lease then
  if seen ~= lease and (seen ~= '' or owner ~= worker) then return 0 end
elseif not score or tonumber(seen) ~= tonumber(score) then
  return 0
end
redis.call('HDEL', unacked, tag) -- the first to write: a full Redis then takes the rest too
redis.call('ZREM', index, tag)
redis.call('HDEL', leases, tag)
redis.call(ARGV[6], ARGV[5], ARGV[7])
if ARGV[8] ~= '' then redis.call('LPUSH', prefix .. 'redelivery.kills', ARGV[8]) end
return 1
