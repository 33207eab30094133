-- list_strings, as it is sent where messages are not sharded. Generated: go test -run ComposedScripts -args -update
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
  return string.find(value, uuid .. ' [^ ]* [%d,%-]*$')
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
-- Answers a 1 for each of these strings that is a held lock of distlock's, and a 0 for the others.
-- KEYS: the names, then the permits of each. One command reads all values, and
-- semaphores are looked for only if there are permits.
local call = redis.call
local t = call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local n = #KEYS / 2
local values = call('MGET', unpack(KEYS, 1, n))

local numbers, permits = {}, {}
for i = 1, n do
  if values[i] and string.find(values[i], '^-?%d+$') then
    numbers[#numbers + 1] = i
    permits[#permits + 1] = KEYS[n + i]
  end
end
local semaphores = {}
if #permits > 0 and call('EXISTS', unpack(permits)) > 0 then
  for _, i in ipairs(numbers) do
    local held = redis.pcall('ZCOUNT', KEYS[n + i], '(' .. now, '+inf')
    semaphores[i] = type(held) == 'number' and held > 0
  end
end

local answer = {}
for i = 1, n do
  local isLock = semaphores[i] or ARGV[1] == '1' and values[i] and isNote(values[i])
  answer[i] = isLock and '1' or '0'
end
return table.concat(answer)
