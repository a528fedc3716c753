-- Take the first message of KEYS: in one step it leaves its list and is registered, so that it never is nowhere. Only
-- lists are KEYS. Returns nothing, or the list, the tag, the text, and what the message does; one that nobody can read is
-- parked, and its text is the item that was made of it. (RPOP writes first: a full Redis then takes the rest too.)
local function text(value, ...)
  for _, name in ipairs({...}) do value = type(value) == 'table' and value[name] end
  return type(value) == 'string' and value or nil
end
for _, list in ipairs(KEYS) do
  local raw = redis.call('LINDEX', list, -1)
  if raw then
    local ok, message = pcall(cjson.decode, raw) -- only to look at: encoding it would make objects of empty lists
    local tag = text(message, 'properties', 'delivery_tag')
    if not tag or string.find(tag, '[^!-~]') then
      local reason = ok and 'it has no delivery tag that can be used' or 'it cannot be decoded: ' .. tostring(message)
      local item = cjson.encode({raw = raw, key = list, reason = reason, worker = worker, time = now})
      redis.call('RPOP', list)
      redis.call('LPUSH', prefix .. 'redelivery.parked', item)
      return {list, '', item, 'parked'}
    end
    while redis.call('HEXISTS', unacked, tag) == 1 do tag = tag .. '+' end -- published twice: each copy counts
    local exchange = cjson.encode(text(message, 'properties', 'delivery_info', 'exchange') or '')
    local routing_key = cjson.encode(text(message, 'properties', 'delivery_info', 'routing_key') or '')
    local state = text(message, 'headers', 'eta') and 'waits' or 'runs'
    redis.call('RPOP', list)
    redis.call('HSET', unacked, tag, '[' .. raw .. ', ' .. exchange .. ', ' .. routing_key .. ']')
    lease(tag, state, list)
    return {list, tag, raw, state}
  end
end
return {}
