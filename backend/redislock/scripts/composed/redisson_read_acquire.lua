-- redisson_read_acquire, as it is sent where messages are not sharded. Generated: go test -run ComposedScripts -args -update
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
-- A reader of RReadWriteLock. KEYS: name, hold, the reader's timeout, fence counter.
-- ARGV: field, TTL, "owner meta ", channel.
local call = redis.call
local writer = ARGV[1] .. ':write'
local seen, other = read('HMGET', KEYS[1], 'mode', ARGV[1], writer)
if other then
  return other
end
local left = call('PTTL', KEYS[1])
if left ~= -2 and not isMode(seen[1], left) then
  return isHeld(KEYS[1]) and redis.error_reply('INVALID this name is a mutex') or noLock('a hash with other fields than a read/write lock')
end
if seen[1] == 'write' and not seen[3] then
  return {left}
end

local id = fence(KEYS[4])
local ttl = ARGV[2]
if seen[2] or seen[3] then
  ttl = math.max(ttl, seen[3] and left or call('PTTL', KEYS[3]))
end
-- What may be refused without harm comes first: the other readers enter at the HSET, and what it makes ends.
call('SET', KEYS[3], 1, 'PX', ttl)
local life = math.max(ttl, left)
call('PEXPIRE', KEYS[1], life)
if seen[3] then
  call('HDEL', KEYS[1], '') -- which is never there
end
call('HSET', KEYS[1], 'mode', 'read', ARGV[1], 1)
if seen[3] then
  call('HDEL', KEYS[1], writer) -- downgrade
elseif left == -2 then
  call('PEXPIRE', KEYS[1], life)
end
remember(KEYS[2], ARGV[3], id, ttl, seen[2] or seen[3])
if seen[3] then
  publish(ARGV[4], '1') -- last, since the user may not have the right to
end
return id
