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
