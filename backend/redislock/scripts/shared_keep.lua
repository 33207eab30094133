-- Readers and permits. KEYS: name, holders and notes of each.
local t = redis.call('TIME')
local now, from = t[1] * 1000 + math.floor(t[2] / 1000), t[1] * 1000 + math.ceil(t[2] / 1000)
return batch(function(at, owner, ttl)
  local value = ask('GET', KEYS[at])
  local ends = value and string.sub(value, 1, 7) == 'shared ' and ask('ZSCORE', KEYS[at + 1], owner)
  if not ends or tonumber(ends) <= now then
    return false
  end
  ends = math.max(ends, from + ttl)
  lengthen(KEYS[at], ttl) -- first: Redis without memory refuses ZADD unless the script has written
  redis.call('ZADD', KEYS[at + 1], ends, owner)
  if tonumber(redis.call('ZRANGE', KEYS[at + 1], -1, -1, 'WITHSCORES')[2]) == ends then
    for key = at, at + 2 do
      redis.call('PEXPIREAT', KEYS[key], ends)
    end
  end
  return true
end, 2)
