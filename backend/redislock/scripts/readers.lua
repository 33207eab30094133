-- The longest life among the readers of a read/write lock: each of their holds has a
-- key that ends when the hold does. The fields of readers that have ended are removed.
local function life(name, base)
  local longest = 0
  local fields = redis.call('HGETALL', name)
  for i = 1, #fields, 2 do
    local holds, left = tonumber(fields[i + 1]), -2
    for hold = 1, holds or 0 do
      left = math.max(left, redis.call('PTTL', base .. ':' .. fields[i] .. ':rwlock_timeout:' .. hold))
    end
    longest = math.max(longest, left)
    if holds and left == -2 then
      redis.call('HDEL', name, fields[i])
    end
  end
  return longest
end

-- The lock lives as long as its longest reader. A reader that shortened its hold may have
-- been the longest; with many readers it isn't worth asking all of them each time, but often enough
-- for most of the fields to be of living ones.
local function shorten(name, base, ttl)
  if redis.call('PTTL', name) > tonumber(ttl) then
    local fields = redis.call('HLEN', name)
    if fields > 32 and bit.band(fields, fields - 1) ~= 0 then
      return
    end
    ttl = math.max(ttl, life(name, base))
  end
  redis.call('PEXPIRE', name, ttl)
end
