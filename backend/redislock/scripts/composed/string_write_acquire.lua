-- string_write_acquire, as it is sent where messages are not sharded. Generated: go test -run ComposedScripts -args -update
-- Fences of the string layout: ids of a stream, ms-sequence, which XADD makes greater
-- than the last one and at least the clock, in one command. The
-- number is ms * 1000 + sequence: so the first of a millisecond starts with the
-- clock's microseconds, to be greater than what a counter had given that was lost
-- within it; and where a thousand are used up, the next millisecond is taken in advance.
--
-- The last entries are kept for drawn.lua: a hundred thousand, or a hundred of each slot of a cluster, whose key ends in a brace.
local function add(key, id)
  return redis.call('XADD', key, 'MAXLEN', '~', string.sub(key, -1) == '}' and 100 or 100000, id, '', '')
end

local function fence(key)
  local id = add(key, '*')
  local next
  if string.sub(id, -2) == '-0' then
    local t = redis.call('TIME')
    local ms, given = t[1] * 1000 + math.floor(t[2] / 1000), tonumber(string.sub(id, 1, -3))
    if ms > given or ms == given and t[2] % 1000 > 0 then
      next = string.format('%.0f-%d', ms, t[2] % 1000)
    end
  elseif not string.find(id, '-', -4, true) then
    next = string.format('%.0f-0', tonumber(string.match(id, '^%d+')) + 1)
  end
  if next then
    add(key, next)
  end
  return next or id
end

-- A floor that is no greater than the last id is refused, and needs nothing.
local function raise(key, floor)
  local r = redis.pcall('XADD', key, floor, '', '')
  if type(r) == 'table' and r.err and not string.find(r.err, 'equal or smaller', 1, true) then
    error(r.err)
  end
end
-- An exclusive hold, or a writer's: the same thing but for a w at the end. KEYS: name, any, queue, places, fence counter.
-- ARGV: "owner meta ", TTL, whether a place in the queue is wanted, w for a writer.
--
-- Most locks are free, and without waiters or taken by the first of them: this part needs nothing
-- of the rest.
local queue, tickets = KEYS[#KEYS - 2], KEYS[#KEYS - 1]
local kind, letter, holders = 'x', ARGV[4] or '', nil
local owner = string.sub(ARGV[1], 1, 36)
local place = owner .. letter

local function grant(first, ttl)
  local id = fence(KEYS[#KEYS])
  redis.call('SET', KEYS[1], ARGV[1] .. id .. (first or '') .. letter, 'PX', ttl or ARGV[2])
  return id
end

local there = redis.call('EXISTS', KEYS[1], queue)
if there == 0 then
  return grant()
end
if there == 1 and ARGV[3] == '1' and redis.call('LINDEX', queue, 0) == place then -- so nothing is held
  local id = grant() -- first: if it is refused, the place stays
  redis.call('LREM', queue, 1, place)
  redis.call('ZREM', tickets, place)
  return id
end

-- regrant lets the holder hold on, under a greater fence. A hold that was taken without a script has minus its TTL
-- where the first fence would be.
local function regrant(value, left)
  if string.sub(value, 1, 37) ~= owner .. ' ' then
    return nil
  end
  local at = string.find(value, ' ', 38, true) or #value
  local first = string.match(string.sub(value, at + 1), '([%d%-]*)w?$')
  if string.sub(first, 1, 1) == '-' then
    local t = redis.call('TIME')
    first = string.format('%.0f-0', t[1] * 1000 + math.floor(t[2] / 1000) + left + first)
  end
  return grant(',' .. first, math.max(ARGV[2], left))
end
-- ask lets a key that has become another type mean that the hold is gone.
local function ask(...)
  local r = redis.pcall(...)
  if type(r) == 'table' and r.err then
    if string.find(r.err, 'WRONGTYPE', 1, true) then
      return false
    end
    error(r.err)
  end
  return r
end
-- publish notifies waiters.
local function publish(channel, message)
  redis.call('PUBLISH', channel, message)
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
-- The queue of a lock, for waiters of every kind. queue lists their places, the next one first: the Owner, and behind
-- it w for a writer, r for a reader, p and the limit for a permit. tickets has the end of each
-- place, by the server's clock in ms: a TTL after its waiter's last attempt.

-- A lock is kept for this many ms for waiters that it lets in, and at most so many are notified at once.
local turnLife, window = 2000, 64

local function clock()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- leave ends a place and reports whether there was one.
local function leave(who)
  return redis.call('LREM', queue, 1, who) + redis.call('ZREM', tickets, who) > 0
end

-- missed ends a place whose waiter has gone. If it was the first, its turn has passed, and the other places of its client have
-- one more turn together: a client that lives asks again for them in time.
local function missed(who, now)
  local ends = now + turnLife
  local first = redis.call('LINDEX', queue, 0) == who
  for _, other in ipairs(first and redis.call('LRANGE', queue, 1, 63) or {}) do
    if string.sub(other, 1, 18) == string.sub(who, 1, 18)
      and tonumber(redis.call('ZSCORE', tickets, other) or 0) > ends then
      redis.call('ZADD', tickets, ends, other)
    end
  end
  leave(who)
end

-- lasting drops waiters that have gone, from the first in the queue to one that has not. It returns
-- that waiter and when its place ends, or nil.
local function lasting(now)
  local first = ask('LINDEX', queue, 0) -- other data there is no queue
  while first do
    local ends = tonumber(redis.call('ZSCORE', tickets, first) or 0)
    if ends > now then
      return first, ends
    end
    missed(first, now)
    first = redis.call('LINDEX', queue, 0)
  end
  redis.call('DEL', tickets) -- of a queue that was deleted
end

-- sweep drops all waiters that have gone, and returns what lasting does.
local function sweep(now)
  for _, who in ipairs(redis.call('ZRANGEBYSCORE', tickets, 0, now)) do
    missed(who, now)
  end
  return lasting(now)
end

-- kindOf returns the kind of a waiter: x, which holds alone, r, or p and the limit.
local function kindOf(who)
  local kind = string.sub(who, 37)
  return (kind == '' or kind == 'w') and 'x' or kind
end

-- roomOf returns how many of a kind may hold.
local function roomOf(kind)
  return kind == 'r' and math.huge or kind ~= 'x' and tonumber(string.sub(kind, 2)) or 1
end

-- sharing returns the kind of those that hold, and how many such may; nil if the name is free.
local function sharing(value)
  if not value then
    return nil
  end
  local limit = string.match(value, '^shared permits (%d+)$')
  local kind = value == 'shared read' and 'r' or limit and 'p' .. limit
  return kind or 'x', kind and roomOf(kind) or 0
end

-- ready returns the waiters that may hold now, of whom first is the first, beside holders of a kind that has room for more.
local function ready(held, room, first)
  local some, kind = {}, first and kindOf(first)
  if not first or held and (held ~= kind or room < 1) then
    return some
  elseif kind == 'x' then
    return {first}
  end
  room = held and room or roomOf(kind)
  for i, who in ipairs(redis.call('LRANGE', queue, 0, math.min(room, window) - 1)) do
    if kindOf(who) ~= kind then
      break
    end
    some[i] = who
  end
  return some
end

-- notify tells a waiter. Those of a client share a channel, named after the common start of their Owners,
-- and the message names the waiter.
local function notify(channel, who)
  publish(channel .. ':' .. string.sub(who, 1, 18), string.sub(who, 1, 36))
end

-- wake notifies those that may hold now. If there is no queue, it publishes how many permits are free, 0 for any number.
local function wake(channel, held, room)
  if held and room < 1 then
    return
  end
  local first = lasting(clock())
  for _, who in ipairs(ready(held, room, first)) do
    notify(channel, who)
  end
  if not first then
    publish(channel, room and room < math.huge and room or '0')
  end
end

local function isPermit(some)
  return string.sub(some, 1, 1) == 'p'
end

-- permits returns the kind of the permits that are held or waited for: all of a name have one limit.
local function permits(held, first)
  if held and isPermit(held) then
    return held
  end
  for at = 0, first and redis.call('LLEN', queue) - 1 or -1, 64 do
    for _, who in ipairs(redis.call('LRANGE', queue, at, at + 63)) do
      if isPermit(kindOf(who)) then
        return kindOf(who)
      end
    end
  end
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
-- A lock that is held, or waited for.

-- admits reports whether who may hold beside room more of the kind held: all before it, of whom first is the first, are of
-- its kind, and fewer than may hold.
local function admits(who, held, room, first)
  if held and (held ~= kind or room < 1) then
    return false
  end
  room = held and room or roomOf(kind)
  if not first or first == who then
    return true
  elseif kindOf(first) ~= kind or room < 2 then
    return false
  end
  for at = 0, math.huge, window do
    local some = redis.call('LRANGE', queue, at, at + window - 1)
    for _, other in ipairs(some) do
      room = room - 1
      if other == who then
        return true
      elseif kindOf(other) ~= kind or room < 1 then
        return false
      end
    end
    if #some < window then
      return true
    end
  end
end

-- enqueue gives who the last place, or extends the place that it has. The keys end with the last place. The first command
-- is the one that lets them end: the server may refuse any, and what was done before stays.
local function enqueue(who, first, ttl, now)
  local ends = first and redis.call('ZSCORE', tickets, who)
  -- The clock is rounded down, and a TTL must not be. An attempt may arrive late, after
  -- one for longer.
  local last = math.max(ttl + 1, (ends or 0) - now)
  local life = math.max(last, redis.call('PTTL', queue), redis.call('PTTL', tickets))
  redis.call('PEXPIRE', queue, life)
  redis.call('ZADD', tickets, now + last, who)
  redis.call('PEXPIRE', tickets, life)
  if ends then
    return
  end
  local pushed = redis.pcall('RPUSH', queue, who)
  if type(pushed) == 'table' then
    redis.call('ZREM', tickets, who) -- or else it would pass for a place
    error(pushed.err)
  end
  redis.call('PEXPIRE', queue, life)
end

-- other is what who would be called on the other side of a read/write lock: an Owner has one place.
local other = place == owner .. 'w' and owner .. 'r' or place == owner .. 'r' and owner .. 'w'

-- switch lets who have the place that it has on the other side, and returns the first in the queue.
local function switch(who, first)
  local ends = other and first and redis.call('ZSCORE', tickets, other)
  if not ends then
    return first
  end
  redis.call('ZADD', tickets, ends, who)
  redis.call('LINSERT', queue, 'BEFORE', other, who)
  leave(other)
  return first == other and who or first
end

-- reads reports whether a writer holds as a reader: its attempt came late, after its downgrade, and gets no place.
local function reads(held, now)
  local ends = held == 'r' and kind == 'x' and other and redis.call('ZSCORE', KEYS[2], owner)
  return ends and tonumber(ends) > now
end

local value, fault = read('GET', KEYS[1])
if fault then
  return fault
end
local now = clock()
local left = value and redis.call('PTTL', KEYS[1]) or -2
local held, room = sharing(value)
local id = value and regrant(value, left)
if id then
  if held == 'x' and kind == 'r' then
    wake(ARGV[5], 'r', math.huge) -- last, since the user may not have the right to
  end
  return id
end
if value and not isLockString(value, left) then
  return noLock(left == -1 and 'a string without a TTL' or 'a string that is no token')
end
if held and isPermit(held) then
  room = holders and room - count() or 0
  if held == kind and left >= 0 then
    left = (redis.call('ZRANGE', holders, 0, 0, 'WITHSCORES')[2] or now + left) - now
  end
end
local first, ends = sweep(now)
first = switch(place, first)
local limited = isPermit(kind) and permits(held, first)
if limited and limited ~= kind then
  return redis.error_reply('INVALID this semaphore has ' .. string.sub(limited, 2) .. ' permits')
end
if admits(place, held, room, first) then
  id = grant(value) -- first: if it is refused, the place stays
  local queued = leave(place)
  local more = queued and kind ~= 'x' and redis.call('LLEN', queue)
  if more == 0 then
    publish(ARGV[5], '0') -- one without a place may follow
  elseif more and more >= window then
    local next = ready(kind, window, lasting(now))[window]
    if next then
      notify(ARGV[5], next) -- that many were notified when this one was
    end
  end
  return id
end
for _, who in ipairs(ready(held, room, first)) do
  if (who == first and ends or redis.call('ZSCORE', tickets, who) or 0) - now > turnLife then
    redis.call('ZADD', tickets, now + turnLife, who)
    ends = who == first and now + turnLife or ends
  end
end
if ARGV[3] == '1' and not reads(held, now) then
  enqueue(place, first, tonumber(ARGV[2]), now)
end
value = value and drawn(value, KEYS[#KEYS], now, left)
if first and first ~= place and (left < 0 or ends - now < left) then
  left = ends - now
end
return {left, value}
