-- Redisson's structures have no room for the notes that Inspect shows, so each hold has a key of
-- its own beside them: "+owner meta fence[,first fence]". It ends with the hold. The
-- plus tells it from a lock of the string layout.
local function remember(key, text, id, ttl, again)
  if again then
    local old = redis.call('GET', key)
    if old then
      local at = string.find(old, ' ', 39, true) or #old
      id = id .. ',' .. string.match(string.sub(old, at + 1), '[^,]*$')
    end
    ttl = math.max(ttl, redis.call('PTTL', key)) -- which may have begun a millisecond after the hold
  end
  redis.call('SET', key, '+' .. text .. id, 'PX', ttl)
end
