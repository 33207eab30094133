-- Those who stand in line for an exclusive lock. The line is a list, the first to get
-- in first. places has our own, by the server's clock in ms when each ends: a TTL after
-- its last attempt. scores is how Java counts, by which it drops the first in line; nil
-- where Java takes no part.
local line, places, scores

local function clock()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- leave ends a place and reports whether there was one.
local function leave(who)
  local ours = redis.call('ZREM', places, who)
  if scores then
    redis.call('ZREM', scores, who)
  end
  return redis.call('LREM', line, 1, who) + ours > 0
end

-- scored is when Java's rule ends a place. One without a score would block Java, which
-- never drops it, for ever: so it gets one.
local function scored(who, now)
  local ends = redis.call('ZSCORE', scores, who)
  if not ends then
    ends = now + 30000
    redis.call('ZADD', scores, ends, who)
  end
  return tonumber(ends)
end

-- sweep drops those who have gone, ours wherever they stand and Java's as Java does, and
-- tells who is first and when that place ends.
local function sweep(now)
  for _, who in ipairs(redis.call('ZRANGEBYSCORE', places, 0, now)) do
    leave(who)
  end
  while true do
    local first = redis.call('LINDEX', line, 0)
    if not first then
      redis.call('DEL', places, scores or places) -- of a line that somebody deleted
      return nil
    end
    local ends = tonumber(redis.call('ZSCORE', places, first) or scores and scored(first, now) or 0)
    if ends > now then
      return first, ends
    end
    leave(first)
  end
end
