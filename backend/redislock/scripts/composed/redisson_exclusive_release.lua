-- redisson_exclusive_release, as it is sent where messages are not sharded. Generated: go test -run ComposedScripts -args -update
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
-- lost answers that nothing is held. Only a master knows that: the data of a replica, also of one
-- that was a master, may be old. A replica shows itself by refusing to write. This write
-- changes nothing: no stream has an entry 0-0.
local function lost(key)
  ask('XDEL', key, '0-0')
  return 0
end
-- publish notifies waiters.
local function publish(channel, message)
  redis.call('PUBLISH', channel, message)
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
-- freed notifies the first waiter in the queue, or all other waiters if the queue is empty.
-- In Java both kinds may wait for one lock, and the latter do not respect the queue. Java notifies
-- each waiter in the queue on a channel of its own, and ours beside Java's too. Java reads 00 as 0, and
-- ours ignore it.
local function freed(channel)
  local first = ask('LINDEX', queue, 0) -- other data there is no queue
  first = first and lasting(first, clock())
  if first then
    publish(channel .. ':' .. first, '0')
  end
  publish(channel, first and '00' or '0')
end

-- quit ends a ticket. If the lock is free and the ticket was the first one, or there is none, the first waiter is
-- notified: who repeats a release, or has deleted the lock without a script, may owe it that.
local function quit(who, name, channel)
  if redis.call('EXISTS', queue) == 0 or not ask('LINDEX', queue, 0) then
    return lost(name)
  end
  local first = sweep(clock())
  local left = leave(who)
  if (first == who or not left) and redis.call('EXISTS', name) == 0 then
    freed(channel)
  end
  return left and 1 or 0
end
-- RLock and RFairLock. KEYS: name, hold, queue, tickets, scores. ARGV: field, channel.
queue, tickets, scores = KEYS[3], KEYS[4], KEYS[5]
local seen = ask('HMGET', KEYS[1], ARGV[1], 'mode')
if not seen or not seen[1] or seen[2] then
  return quit(ARGV[1], KEYS[1], ARGV[2])
end
redis.call('DEL', KEYS[1], KEYS[2])
freed(ARGV[2])
return 1
