-- What the other scripts begin with. ARGV: the prefix of all keys, and the worker. All times are this server's.
local prefix, worker = ARGV[1], ARGV[2]
local unacked, index, leases = prefix .. 'unacked', prefix .. 'unacked_index', prefix .. 'redelivery.leases'
local time = redis.call('TIME')
local now = time[1] .. string.format('.%06d', time[2])
-- The lease of a message, and of it the worker and the list, while its time is the message's score: kombu writes
-- another score when a stock worker takes the message.
local function valid(tag)
  local lease, score = redis.call('HGET', leases, tag), redis.call('ZSCORE', index, tag)
  local since, owner, list = string.match(lease or '', '^(%S+) (%S+) %d (.*)$')
  if score and since and tonumber(since) == tonumber(score) then return lease, owner, list end
end
