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
