-- Renew leases, then look for those that ran out. ARGV: seconds of a lease, seconds for messages without one, then of
-- each message its tag and what it does. Returns the tags that are lost, and {tag, lease or score, text} of what ran out.
local lost, out = {}, {}
for i = 5, #ARGV, 2 do
  local _, owner, list = leased(ARGV[i])
  if owner == worker then lease(ARGV[i], ARGV[i + 1], list) else lost[#lost + 1] = ARGV[i] end
end
-- A lease runs out by a clock that goes on while somebody looks. At other times Redis stood still, and nobody could renew
-- either, or no worker lived, or its time was set. (pcall: a full Redis refuses, and the next look makes up for it.)
local at, clock = unpack(redis.call('HMGET', look, 'at', 'clock'))
clock = (clock or now) + math.max(0, math.min(now - (at or now), ARGV[3] / 6))
redis.pcall('HSET', look, 'at', now, 'clock', clock)
for _, tag in ipairs(redis.call('ZRANGEBYSCORE', index, '-inf', now - ARGV[3])) do
  local text, _, _, since = leased(tag)
  local score = redis.call('ZSCORE', index, tag)
  local left = text and ARGV[3] - (clock - since) or ARGV[4] - (now - score)
  if left <= 0 and #out < 100 then
    local stored = redis.call('HGET', unacked, tag)
    if stored then out[#out + 1] = {tag, text or score, stored} else redis.call('ZREM', index, tag) end
  end
end
if redis.call('HLEN', leases) > redis.call('ZCARD', index) then -- some are of messages that a stock worker settled
  for _, tag in ipairs(redis.call('HKEYS', leases)) do
    if not leased(tag) then redis.call('HDEL', leases, tag) end
  end
end
return {lost, out}
