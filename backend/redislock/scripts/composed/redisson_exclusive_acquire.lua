-- redisson_exclusive_acquire, as it is sent where messages are not sharded. Generated: go test -run ComposedScripts -args -update
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
-- The queue of an exclusive lock of Redisson's. queue is the list of waiters, the next one first. tickets has
-- the end of each of our waiters' tickets, by the server's clock in ms: a TTL after its last
-- attempt. scores has the ends by which Java drops the first waiter.
local queue, tickets, scores

-- A free lock is kept for the first waiter for this many ms.
local turnLife = 2000

local function clock()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- leave ends a ticket and reports whether there was one.
local function leave(who)
  local left = redis.call('LREM', queue, 1, who) + redis.call('ZREM', tickets, who)
  redis.call('ZREM', scores, who)
  return left > 0
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

-- scored returns when Java's rule ends a ticket. Without a score Java would never drop the
-- ticket, and be blocked for ever: so it gets one.
local function scored(who, now)
  local ends = redis.call('ZSCORE', scores, who)
  if not ends then
    ends = now + 30000
    redis.call('ZADD', scores, ends, who)
  end
  return tonumber(ends)
end

-- lasting drops waiters that have gone, from the first in the queue to one that has not. It returns
-- that waiter and when its ticket ends, or nil.
local function lasting(first, now)
  while first do
    local ends = tonumber(redis.call('ZSCORE', tickets, first) or scored(first, now))
    if ends > now then
      return first, ends
    end
    missed(first, now)
    first = redis.call('LINDEX', queue, 0)
  end
  redis.call('DEL', tickets, scores) -- of a queue that was deleted
end

-- sweep drops waiters that have gone, ours anywhere in the queue and Java's as Java does. It
-- returns the first waiter and when its ticket ends.
local function sweep(now)
  for _, who in ipairs(redis.call('ZRANGEBYSCORE', tickets, 0, now)) do
    missed(who, now)
  end
  return lasting(redis.call('LINDEX', queue, 0), now)
end
-- score lets Java keep a ticket of ours while its waiter retries, and not much longer: that is
-- Java's only way to see that the waiter has gone. The first waiter needs a TTL
-- from now, and some time for a Java clock that is ahead. A ticket behind Java's tickets also needs
-- the time that Java added for each of those, since Java takes that off from all when it gets
-- in, and the time that it has waited meanwhile.
local function score(who, before, waited, ttl, now)
  local life = ttl + 10000
  local ends = 0
  if before then
    ends = redis.call('ZSCORE', scores, who)
    if ends then
      ends = ends + waited
    else
      ends = (redis.call('ZSCORE', scores, before) or now) + (redis.call('ZSCORE', tickets, before) and 0 or life)
    end
  end
  ends = math.max(ends, now + life)
  redis.call('ZADD', scores, ends, who)
  return ends - now
end

-- enqueue gives who the last ticket, or extends the ticket that it has. The keys end with
-- the last ticket, except Java's two: its tickets last longer than their scores say. The first command is the one that
-- lets ours end: the server may refuse any, and what was done before stays.
local function enqueue(who, first, ttl, now)
  local ends = first and redis.call('ZSCORE', tickets, who)
  local before = first and first ~= who and redis.call('LINDEX', queue, -1)
  local stands = ends or redis.call('ZSCORE', scores, who)
  -- The clock is rounded down, and a TTL must not be. An attempt may arrive late, after
  -- one for longer.
  local last = math.max(ttl + 1, (ends or 0) - now)
  local life = math.max(last, redis.call('PTTL', tickets))
  redis.call('PEXPIRE', tickets, life)
  redis.call('ZADD', tickets, now + last, who)
  redis.call('PEXPIRE', tickets, life)
  last = math.max(last, score(who, before, ends and now + last - ends or 0, last, now))
  if last > life then
    redis.call('PEXPIRE', tickets, last)
  end
  local pushed = not stands and redis.pcall('RPUSH', queue, who)
  if type(pushed) == 'table' then
    redis.call('ZREM', tickets, who) -- or else it would pass for a ticket
    redis.call('ZREM', scores, who)
    error(pushed.err)
  end
end

-- front puts a waiter of ours back that Java has dropped too early: it was the first.
local function front(who, now)
  if not redis.call('ZSCORE', tickets, who) or redis.call('ZSCORE', scores, who) then
    return
  end
  for _, other in ipairs(redis.call('LRANGE', queue, 0, -1)) do
    if other == who then
      return -- and lost its score otherwise
    end
  end
  redis.call('LPUSH', queue, who)
  redis.call('ZADD', scores, now, who)
end

-- refuse decides about a lock that is held for another left ms, as PTTL says: nil
-- lets who in, and ends its ticket. Otherwise it enqueues who for ttl, if who wants that, and
-- returns after how many ms a retry may succeed.
local function refuse(who, left, wants, ttl)
  if not wants and redis.call('EXISTS', queue) == 0 then
    return left
  end
  local now = clock()
  front(who, now)
  local first, ends = sweep(now)
  if left == -2 and (not first or first == who) then
    leave(who)
    return nil
  end
  if left == -2 and ends - now > turnLife and redis.call('ZSCORE', tickets, first) then
    ends = now + turnLife
    redis.call('ZADD', tickets, ends, first)
  end
  if wants then
    enqueue(who, first, ttl, now)
  end
  if first and first ~= who and (left < 0 or ends - now < left) then
    left = ends - now
  end
  return left
end
-- RLock, RFairLock and RFencedLock. KEYS: name, hold, queue, tickets, scores, token. ARGV:
-- field, TTL, "owner meta ", whether a ticket in the queue is wanted.
local call = redis.call
local again, ttl = false, ARGV[2]
if call('EXISTS', KEYS[1], KEYS[3]) > 0 then
  queue, tickets, scores = KEYS[3], KEYS[4], KEYS[5]
  local seen, other = read('HMGET', KEYS[1], ARGV[1], 'mode')
  if other then
    return other
  end
  local left = call('PTTL', KEYS[1])
  if isMode(seen[2], left) then
    return redis.error_reply('INVALID this name is a read/write lock')
  end
  if not seen[1] and left ~= -2 and not isHeld(KEYS[1]) then
    return noLock('a hash with other fields than an RLock')
  end
  again = seen[1]
  if again then
    sweep(clock())
    ttl = math.max(ttl, left)
  else
    left = refuse(ARGV[1], left, ARGV[4] == '1', tonumber(ARGV[2]))
    if left then
      return {left}
    end
  end
end
local id = fence(KEYS[#KEYS])
call('PEXPIRE', KEYS[1], ttl) -- also first: if that is refused, no key stays without an end
call('HSET', KEYS[1], ARGV[1], 1)
call('PEXPIRE', KEYS[1], ttl)
remember(KEYS[2], ARGV[3], id, ttl, again)
return id
