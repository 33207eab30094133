-- redisson_counted_acquire, as it is sent where messages are not sharded. Generated: go test -run ComposedScripts -args -update
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
-- Tells a lock from other data, for refusals. isLockString in inspect.go has the same rule for
-- strings.
local uuid = '^%x%x%x%x%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%x%x%x%x%x%x%x%x'

local function noLock(what)
  return redis.error_reply('NOLOCK ' .. what)
end

-- read reads a lock's own key. The second result is the answer for a key of another type.
local function read(command, key, ...)
  local r = redis.pcall(command, key, ...)
  if type(r) == 'table' and r.err then
    if string.find(r.err, 'WRONGTYPE', 1, true) then
      return nil, noLock('a ' .. redis.call('TYPE', key).ok)
    end
    error(r.err)
  end
  return r
end

-- isNote reports whether a string is a lock of distlock's own.
local function isNote(value)
  return string.find(value, uuid .. ' [^ ]* [%d,%-]*w?$')
end

-- isShared reports whether a string is there for readers or permits, which are kept beside it.
local function isShared(value)
  return value == 'shared read' or string.find(value, '^shared permits %d+$')
end

-- isLockString reports whether a string that lives for left ms may be a lock: distlock's own,
-- or the token of another library.
local function isLockString(value, left)
  if isNote(value) then
    return true
  end
  if left == -1 then
    return string.find(value, uuid .. '$') or #value == 32 and string.find(value, '^%x+$')
  end
  return #value <= 1024 and not string.find(value, '^{.*}$')
end

-- isHeld reports whether a hash is an RLock of Redisson's that is held.
local function isHeld(key)
  return redis.call('HLEN', key) == 1 and string.find(redis.call('HKEYS', key)[1], uuid .. ':%-?%d+$')
end

-- isMode reports whether a hash with this mode may be a read/write lock that is held.
local function isMode(mode, left)
  return (mode == 'read' or mode == 'write') and left ~= -1
end
-- publish notifies waiters.
local function publish(channel, message)
  redis.call('PUBLISH', channel, message)
end
-- now returns the server's clock in ms, as RPermitExpirableSemaphore keeps the ends of its
-- permits, rounded down and up. A life is counted from the latter, so that it is not
-- short; whether a permit has ended is asked of the former.
local function now()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000), t[1] * 1000 + math.ceil(t[2] / 1000)
end

-- together lets the counter and the permits of a semaphore end in the same millisecond, at ends or
-- later: their lives are not shortened. The clock may go on during a script, so it is read
-- after the lives.
local function together(counter, permits, ends)
  local left = math.max(redis.call('PTTL', counter), redis.call('PTTL', permits))
  local at = math.max(ends, now() + left)
  redis.call('PEXPIREAT', counter, at)
  redis.call('PEXPIREAT', permits, at)
end
-- RPermitExpirableSemaphore. KEYS: name (free permits), hold, permits, fence counter.
-- ARGV: permit id, TTL, "owner meta ", channel, limit.
local call = redis.call
local free, other = read('GET', KEYS[1])
if other then
  return other
end
local ends = free and call('PTTL', KEYS[1])
if free and not (string.match(free, '^-?%d+$') and (ends == -1 or call('EXISTS', KEYS[3]) == 1)) then
  return isLockString(free, ends) and redis.error_reply('INVALID this name is a mutex') or noLock('a string that is no semaphore')
end
free = free and tonumber(free)

local t, from = now()
-- What changes the permits tries first whether it may change the counter, or else a permit would be lost.
local back = call('ZCOUNT', KEYS[3], 0, t)
local held = call('ZCARD', KEYS[3]) - back
if back > 0 and free then
  call('INCRBY', KEYS[1], 0)
end
call('ZREMRANGEBYSCORE', KEYS[3], 0, t)
if back > 0 and free then
  free = call('INCRBY', KEYS[1], back)
  if free > 0 then
    publish(ARGV[4], free)
  end
end

local limit = tonumber(ARGV[5])
local total = free and free + held or limit
if total ~= limit then
  return redis.error_reply('INVALID this semaphore has ' .. string.format('%d', total) .. ' permits')
end
local again = call('ZSCORE', KEYS[3], ARGV[1])
if not again and limit - held < 1 then
  local first = call('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES')[2]
  return {first and math.max(1, tonumber(first) - t) or -1}
end

local id = fence(KEYS[4])
if not free then
  call('SET', KEYS[1], limit - held)
end
call('INCRBY', KEYS[1], 0)
local last = math.max(from + ARGV[2], again or 0)
if call('ZADD', KEYS[3], last, ARGV[1]) == 1 then
  call('INCRBY', KEYS[1], -1)
end
if free and ends >= 0 then -- it was made to end
  together(KEYS[1], KEYS[3], last)
end
remember(KEYS[2], ARGV[3], id, again and last - from or ARGV[2], again)
return id
