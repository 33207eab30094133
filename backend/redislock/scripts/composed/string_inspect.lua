-- string_inspect, as it is sent where messages are not sharded. Generated: go test -run ComposedScripts -args -update
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
-- drawn returns a value with its fence, if plain commands wrote the value before they knew that: what they drew is the entry
-- with the end of the Owner, in or soon after the millisecond in which the key began its TTL. now was read before left.
local function drawn(value, counter, now, left)
  local at = string.find(value, ' -', 38, true)
  local ttl = at and string.match(value, '^%d+', at + 2)
  local entries = ttl and redis.pcall('XRANGE', counter, string.format('%.0f', math.max(0, now + left - ttl - 2)), '+', 'COUNT', 256)
  for _, entry in ipairs(entries or {}) do
    if entry[2][2] == string.sub(value, 29, 36) then
      return string.sub(value, 1, at) .. entry[1] .. (string.sub(value, -1) == 'w' and 'w' or '')
    end
  end
  return value
end
-- What is known of one name. KEYS: name, holders, notes, queue, places, fence counter.
-- Answer: type; clock in µs; ms left; value; {owner, ms left, note}…; {place, ms left}….
local call = redis.call
local t = call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local kind = call('TYPE', KEYS[1]).ok
local value = kind == 'string' and call('GET', KEYS[1]) or ''
local left = call('PTTL', KEYS[1])
local holders, waiters = {}, {}

if isShared(value) and call('TYPE', KEYS[2]).ok == 'zset' then
  local found = call('ZRANGEBYSCORE', KEYS[2], '(' .. now, '+inf', 'WITHSCORES')
  for i = 1, #found, 2 do
    holders[#holders + 1] = {found[i], tonumber(found[i + 1]) - now, found[i] .. ' ' .. (call('HGET', KEYS[3], found[i]) or '')}
  end
end
if call('TYPE', KEYS[4]).ok == 'list' then
  for _, who in ipairs(call('LRANGE', KEYS[4], 0, -1)) do
    local left = tonumber(call('ZSCORE', KEYS[5], who) or now) - now
    if left >= 0 then
      waiters[#waiters + 1] = {who, left > 0 and left or -1}
    end
  end
end
return {kind, t[1] * 1000000 + t[2], left, drawn(value, KEYS[6], now, left), holders, waiters}
