-- Take the first message of KEYS: in one step it leaves its list and is registered, so that it never is nowhere.
-- Only lists are KEYS: their changes wake whoever waits. Returns what was parked as nobody can read it, then the list,
-- the tag, the text, and whether it waits for an eta. (RPOP is the first to write: a full Redis then takes the rest too.)
local parked = {}
for _, list in ipairs(KEYS) do
  local raw = redis.call('LINDEX', list, -1)
  while raw and #parked < 100 do
    local ok, message = pcall(cjson.decode, raw) -- only to look at: encoding it would make objects of empty lists
    local properties = ok and type(message) == 'table' and message.properties
    local tag = type(properties) == 'table' and properties.delivery_tag
    if type(tag) == 'string' and not string.find(tag, '[^!-~]') then
      while redis.call('HEXISTS', unacked, tag) == 1 do tag = tag .. '+' end -- published twice: each copy counts
      local info = type(properties.delivery_info) == 'table' and properties.delivery_info or {}
      local route = cjson.encode(info.exchange or '') .. ', ' .. cjson.encode(info.routing_key or '')
      local waits = type(message.headers) == 'table' and type(message.headers.eta) == 'string' and 1 or 0
      redis.call('RPOP', list)
      redis.call('HSET', unacked, tag, '[' .. raw .. ', ' .. route .. ']')
      redis.call('ZADD', index, now, tag)
      redis.call('HSET', leases, tag, now .. ' ' .. worker .. ' ' .. waits .. ' ' .. list)
      return {parked, list, tag, raw, waits}
    end
    local reason = ok and 'it has no delivery tag that can be used' or 'it cannot be decoded: ' .. tostring(message)
    local item = {raw = raw, key = list, reason = reason, worker = worker, time = tonumber(now), n = #parked}
    parked[#parked + 1] = cjson.encode(item)
    redis.call('RPOP', list)
    redis.call('LPUSH', prefix .. 'redelivery.parked', parked[#parked])
    raw = redis.call('LINDEX', list, -1)
  end
end
return {parked}
