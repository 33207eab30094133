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
-- returns after how many ms a retry may succeed, and whether a message tells of all else: behind another waiter none does, whose
-- turn may pass.
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
  return left, wants and (not first or first == who)
end
