-- string_exclusive_acquire, as it is sent where messages are not sharded. Generated: go test -run ComposedScripts -args -update
-- Fences of the string layout: ids of a stream, ms-sequence, which XADD makes greater
-- than the last one and at least the clock, in one command. No entry is kept. The
-- number is ms * 1000 + sequence: so the first of a millisecond starts with the
-- clock's microseconds, to be greater than what a counter had given that was lost
-- within it; and where a thousand are used up, the next millisecond is taken in advance.
local function fence(key)
  local id = redis.call('XADD', key, 'MAXLEN', 0, '*', '', '')
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
    redis.call('XADD', key, 'MAXLEN', 0, next, '', '')
  end
  return next or id
end

-- A floor that is no greater than the last id is refused, and needs nothing.
local function raise(key, floor)
  local r = redis.pcall('XADD', key, 'MAXLEN', 0, floor, '', '')
  if type(r) == 'table' and r.err and not string.find(r.err, 'equal or smaller', 1, true) then
    error(r.err)
  end
end
-- KEYS: name, queue, tickets, fence counter. ARGV: "owner meta ", TTL, whether a ticket in
-- the queue is wanted.
--
-- Most locks are free, and without waiters or taken by the first of them: this part needs nothing
-- of the rest.
local function set(first, ttl)
  local id = fence(KEYS[#KEYS])
  redis.call('SET', KEYS[1], ARGV[1] .. id .. first, 'PX', ttl)
  return id
end

local there = redis.call('EXISTS', KEYS[1], KEYS[2])
if there == 0 then
  return set('', ARGV[2])
end

local owner = string.sub(ARGV[1], 1, 36)
if there == 1 and ARGV[3] == '1' and redis.call('LINDEX', KEYS[2], 0) == owner then -- so nothing is held
  redis.call('LREM', KEYS[2], 1, owner)
  redis.call('ZREM', KEYS[3], owner)
  return set('', ARGV[2])
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
-- The queue of an exclusive lock. queue is the list of waiters, the next one first. tickets has
-- the end of each of our waiters' tickets, by the server's clock in ms: a TTL after its last
-- attempt. scores has the ends by which Java drops the first waiter; nil if Java takes no part.
local queue, tickets, scores

-- A free lock is kept for the first waiter for this many ms.
local turnLife = 2000

local function clock()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- leave ends a ticket and reports whether there was one.
local function leave(who)
  local ours = redis.call('ZREM', tickets, who)
  if scores then
    redis.call('ZREM', scores, who)
  end
  return redis.call('LREM', queue, 1, who) + ours > 0
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
    local ends = tonumber(redis.call('ZSCORE', tickets, first) or scores and scored(first, now) or 0)
    if ends > now then
      return first, ends
    end
    leave(first)
    first = redis.call('LINDEX', queue, 0)
  end
  redis.call('DEL', tickets, scores or tickets) -- of a queue that was deleted
end

-- sweep drops waiters that have gone, ours anywhere in the queue and Java's as Java does. It
-- returns the first waiter and when its ticket ends.
local function sweep(now)
  for _, who in ipairs(redis.call('ZRANGEBYSCORE', tickets, 0, now)) do
    leave(who)
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
-- the last ticket, except Java's two: its tickets last longer than their scores say.
local function enqueue(who, first, ttl, now)
  local ends = first and redis.call('ZSCORE', tickets, who)
  local before = scores and first and first ~= who and redis.call('LINDEX', queue, -1)
  if not ends and not (scores and redis.call('ZSCORE', scores, who)) then
    redis.call('RPUSH', queue, who)
  end
  -- The clock is rounded down, and a TTL must not be. An attempt may arrive late, after
  -- one for longer.
  local last = math.max(ttl + 1, (ends or 0) - now)
  redis.call('ZADD', tickets, now + last, who)
  if scores then
    last = math.max(last, score(who, before, ends and now + last - ends or 0, last, now))
  elseif not first or redis.call('PTTL', queue) < last then
    redis.call('PEXPIRE', queue, last)
  end
  if not first or redis.call('PTTL', tickets) < last then
    redis.call('PEXPIRE', tickets, last)
  end
end

-- front puts a waiter of ours back that Java has dropped too early: it was the first.
local function front(who, now)
  if not scores or not redis.call('ZSCORE', tickets, who) or redis.call('ZSCORE', scores, who) then
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
-- A lock that is held, or waited for.
local call = redis.call
queue, tickets = KEYS[2], KEYS[3]
local first, ttl = '', ARGV[2]
local value, other = read('GET', KEYS[1])
if other then
  return other
end
if value and string.sub(value, 1, 37) == string.sub(ARGV[1], 1, 37) then
  first = string.match(value, '[^ ,]*$')
  first = string.find(first, '^%-') and '' or ',' .. first
  ttl = math.max(ttl, call('PTTL', KEYS[1]))
  sweep(clock())
else
  local left = value and call('PTTL', KEYS[1]) or -2
  if value and not isLockString(value, left) then
    return noLock(left == -1 and 'a string without a TTL' or 'a string that is no token')
  end
  left = refuse(owner, left, ARGV[3] == '1', tonumber(ARGV[2]))
  if left then
    return {left, value}
  end
end
return set(first, ttl)
