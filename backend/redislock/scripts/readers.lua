-- The longest life among the readers of a read/write lock: each of their holds has a
-- key that ends when the hold does.
local function life(name, base)
  local longest = 0
  local fields = redis.call('HGETALL', name)
  for i = 1, #fields, 2 do
    for hold = 1, tonumber(fields[i + 1]) or 0 do
      longest = math.max(longest, redis.call('PTTL', base .. ':' .. fields[i] .. ':rwlock_timeout:' .. hold))
    end
  end
  return longest
end

-- The lock lives as long as its longest reader. A reader that shortened its hold may have
-- been the longest; with many readers it isn't worth asking all of them.
local function shorten(name, base, ttl)
  if redis.call('PTTL', name) > tonumber(ttl) then
    if redis.call('HLEN', name) > 32 then
      return
    end
    ttl = math.max(ttl, life(name, base))
  end
  redis.call('PEXPIRE', name, ttl)
end
