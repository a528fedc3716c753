-- What the other scripts begin with. ARGV: the prefix of all keys, and the worker. All times are this server's.
local prefix, worker = ARGV[1], ARGV[2]
local unacked, index, leases = prefix .. 'unacked', prefix .. 'unacked_index', prefix .. 'redelivery.leases'
local look = prefix .. 'redelivery.look' -- when somebody last looked for leases that ran out, and a clock (lease.lua)
local time = redis.call('TIME')
local now = time[1] .. string.format('.%06d', time[2])
-- Lease a message: its score, what the clock says, the worker, what the message does, its list.
local function lease(tag, state, list)
  redis.call('HDEL', leases, tag) -- the first to write: a full Redis then takes the rest too
  redis.call('ZADD', index, now, tag)
  local text = {now, redis.call('HGET', look, 'clock') or now, worker, state, list}
  redis.call('HSET', leases, tag, table.concat(text, ' '))
end
-- The lease of a message, its worker, its list and since when it runs, unless a stock worker has taken the message.
local function leased(tag)
  local text, score = redis.call('HGET', leases, tag), redis.call('ZSCORE', index, tag)
  local wrote, since, owner, list = string.match(text or '', '^(%S+) (%S+) (%S+) %S+ (.*)$')
  if score and wrote and tonumber(wrote) == tonumber(score) then return text, owner, list, since end
end
