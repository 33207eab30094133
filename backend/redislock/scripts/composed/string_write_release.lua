-- string_write_release, as it is sent where messages are not sharded. Generated: go test -run ComposedScripts -args -update
-- KEYS: name, holders and notes but for an exclusive hold, queue, places. ARGV: owner, or the whole value of a lock
-- that is not ours; channel.
--
-- Most locks are waited for by nobody: this part needs nothing of the rest.
local queue, tickets = KEYS[#KEYS - 1], KEYS[#KEYS]
local value = redis.pcall('GET', KEYS[1])
local held = type(value) == 'string' and (string.sub(value, 1, 37) == ARGV[1] .. ' ' or value == ARGV[1])
if held then
  redis.call('DEL', KEYS[1])
  if redis.call('EXISTS', queue) == 0 then
    redis.call('PUBLISH', ARGV[2], '0')
    return 1
  end
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
-- lost answers that nothing is held. Only a master knows that: the data of a replica, also of one
-- that was a master, may be old. A replica shows itself by refusing to write. This write
-- changes nothing: no stream has an entry 0-0.
local function lost(key)
  ask('XDEL', key, '0-0')
  return 0
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
-- There is a queue, or nothing was held alone.
if held then
  wake(ARGV[2])
  return 1
end

value = ask('GET', KEYS[1])
local kind, room = sharing(value)
local ends = room and room > 0 and #KEYS == 5 and ask('ZSCORE', KEYS[2], ARGV[1])
local now = clock()
if ends and tonumber(ends) > now then -- its owner may have a place behind one that has ended
  local others = redis.call('ZCOUNT', KEYS[2], '(' .. now, '+inf') - 1
  if others == 0 then
    redis.call('DEL', KEYS[1], KEYS[2], KEYS[3])
    wake(ARGV[2])
    return 1
  end
  local last = redis.call('ZRANGE', KEYS[2], -2, -1, 'WITHSCORES') -- of others: the one before ours, if ours is the last
  last = last[3] == ARGV[1] and last[2] or last[4]
  for at = 1, 3 do
    redis.call('PEXPIREAT', KEYS[at], last)
  end
  redis.call('HDEL', KEYS[3], ARGV[1])
  redis.call('ZREM', KEYS[2], ARGV[1]) -- last: if anything is refused, it is done when the release is repeated
  if kind ~= 'r' then
    wake(ARGV[2], kind, room - others)
  end
  return 1
end

-- A place, of whatever kind. It may have kept others out. Who repeats a release, or has deleted the lock without a
-- script, may owe the first waiter a message.
local first = ask('LINDEX', queue, 0)
if first then
  sweep(now)
  for _, as in ipairs({'', 'w', 'r', 'p'}) do
    local who = ARGV[1] .. (as == 'p' and permits(kind, first) or as)
    if redis.call('ZSCORE', tickets, who) then
      leave(who)
      wake(ARGV[2], kind, room)
      return 1
    end
  end
  if not value then
    wake(ARGV[2])
  end
end
return lost(KEYS[1])
