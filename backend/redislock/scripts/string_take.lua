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
end
local known = held == 'x' -- when the first hold ends
if held and not known and left >= 0 and #KEYS == 6 then -- the marker ends with the last one, or sooner if that is released
  left = (redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2] or now + left) - now
  known = true
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
local told = 0
if ARGV[3] == '1' and not reads(held, now) then
  enqueue(place, first, tonumber(ARGV[2]), now)
  told = known and (not first or first == place) and 1 or 0 -- behind another nobody is, whose turn may pass
end
value = value and drawn(value, KEYS[#KEYS], now, left)
if first and first ~= place and (left < 0 or ends - now < left) then
  left = ends - now
end
return {left, value, told}
