-- redisson_inspect, as it is sent where messages are not sharded. Generated: go test -run ComposedScripts -args -update
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
-- What is known of one name. KEYS: name, permits, queue, tickets. ARGV: base of the names
-- of holds.
-- Answer: kind, clock in µs, ms left, value, {owner, ms left, hold}…, {waiter, ms left}….
local call = redis.call
local t = call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local kind = call('TYPE', KEYS[1]).ok
local value = ''
local holders = {}

local function holder(name, left, owner)
  holders[#holders + 1] = {name, left, call('GET', ARGV[1] .. ':' .. owner .. ':distlock') or ''}
end

-- uuid writes a permit's 16 bytes as the owner that they are.
local function uuid(id)
  local hex = string.gsub(id, '.', function(c) return string.format('%02x', string.byte(c)) end)
  return string.sub(hex, 1, 8) .. '-' .. string.sub(hex, 9, 12) .. '-' .. string.sub(hex, 13, 16) .. '-'
    .. string.sub(hex, 17, 20) .. '-' .. string.sub(hex, 21)
end

if kind == 'string' then
  value = call('GET', KEYS[1])
  if call('TYPE', KEYS[2]).ok == 'zset' then
    kind = 'semaphore'
    local permits = call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES')
    for i = 1, #permits, 2 do
      local ends = tonumber(permits[i + 1])
      if ends > now then
        holder(permits[i], ends - now, uuid(permits[i]))
      end
    end
  end
elseif kind == 'hash' then
  value = call('HGET', KEYS[1], 'mode') or ''
  -- Another program's hash may have millions of fields.
  local lock = isMode(value, call('PTTL', KEYS[1])) or value == '' and call('HLEN', KEYS[1]) == 1
  local fields = lock and call('HKEYS', KEYS[1]) or {}
  for _, field in ipairs(fields) do
    if field ~= 'mode' then
      local left = call('PTTL', KEYS[1])
      if value == 'read' then
        left = call('PTTL', ARGV[1] .. ':' .. field .. ':rwlock_timeout:1')
      end
      if left ~= -2 then
        holder(field, left, string.sub(field, 1, 36))
      end
    end
  end
end
local waiters = {}
if call('TYPE', KEYS[3]).ok == 'list' then
  for _, who in ipairs(call('LRANGE', KEYS[3], 0, -1)) do
    local left = tonumber(call('ZSCORE', KEYS[4], who) or now) - now
    if left >= 0 then
      waiters[#waiters + 1] = {who, left > 0 and left or -1}
    end
  end
end
return {kind, t[1] * 1000000 + t[2], call('PTTL', KEYS[1]), value, holders, waiters}
