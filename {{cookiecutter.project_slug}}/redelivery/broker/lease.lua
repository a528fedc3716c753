-- Renew leases, then look for those that ran out. ARGV: seconds of a lease, seconds for messages without one, then of
-- each message its tag, and 1 while it waits for its eta. Returns lost tags, and {tag, lease or score, text} of others.
local lost, out = {}, {}
for i = 5, #ARGV, 2 do
  local _, owner, list = valid(ARGV[i])
  if owner == worker then
    redis.call('HDEL', leases, ARGV[i]) -- the first to write: a full Redis then takes the rest too
    redis.call('ZADD', index, now, ARGV[i])
    redis.call('HSET', leases, ARGV[i], now .. ' ' .. worker .. ' ' .. ARGV[i + 1] .. ' ' .. list)
  else
    lost[#lost + 1] = ARGV[i]
  end
end
-- When nobody looked for half a lease, then nobody could renew either: Redis stood still, or its clock was set. So all
-- get a whole lease for that first. (pcall: a full Redis refuses, and that counts as not looked.)
local look = prefix .. 'redelivery.look'
local at, careful = unpack(redis.call('HMGET', look, 'at', 'careful'))
if not at or now - at > ARGV[3] / 2 or now - at < 0 then careful = now end
redis.pcall('HSET', look, 'at', now, 'careful', careful)
local old = now - careful < ARGV[3] + 0 and {} or redis.call('ZRANGEBYSCORE', index, '-inf', now - ARGV[3])
for _, tag in ipairs(old) do
  local seen, score = valid(tag), redis.call('ZSCORE', index, tag)
  if #out < 100 and (seen or score + 0 < now - ARGV[4]) then
    local stored = redis.call('HGET', unacked, tag)
    if stored then out[#out + 1] = {tag, seen or score, stored} else redis.call('ZREM', index, tag) end
  end
end
if redis.call('HLEN', leases) > redis.call('ZCARD', index) then -- some are of messages that a stock worker settled
  for _, tag in ipairs(redis.call('HKEYS', leases)) do
    if not valid(tag) then redis.call('HDEL', leases, tag) end
  end
end
return {lost, out}
