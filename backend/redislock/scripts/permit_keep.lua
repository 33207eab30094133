-- Permits. KEYS: name, hold and permits of each. A permit whose end has passed is not
-- held any more, though it has not been removed yet.
local t, from = now()
return batch(function(at, id, ttl)
  local ends = ask('ZSCORE', KEYS[at + 2], id)
  if not ends or tonumber(ends) <= t then
    return false
  end
  ends = math.max(ends, from + ttl)
  lengthen(KEYS[at + 1], ttl) -- first: Redis without memory refuses ZADD unless the script has written
  redis.call('ZADD', KEYS[at + 2], ends, id)
  if redis.call('PTTL', KEYS[at]) >= 0 then
    together(KEYS[at], KEYS[at + 2], ends)
  end
  return true
end, 2)
