-- Fences of the Redisson layout: the counter that Java increments, moved up to the
-- clock in microseconds. Numbers stay decimal strings, since Lua's are inexact beyond
-- 2^53 and a floor from another store may be greater.
local function less(a, b)
  return #a < #b or (#a == #b and a < b)
end

local function fence(key)
  local t = redis.call('TIME')
  local now = string.format('%d%06d', t[1], t[2])
  local last = redis.call('GETSET', key, now)
  if last and not less(last, now) then
    redis.call('SET', key, last)
    redis.call('INCR', key)
    return redis.call('GET', key)
  end
  return now
end

local function raise(key, floor)
  if less(redis.call('GET', key) or '', floor) then
    redis.call('SET', key, floor)
  end
end
