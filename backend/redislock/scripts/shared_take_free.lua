-- A reader's hold, or a permit. KEYS: name, holders, notes, queue, places, fence counter. ARGV: "owner meta ", TTL,
-- whether a place in the queue is wanted, r or p and the limit, channel.
--
-- The name has a marker while anybody holds. holders has the end of each hold, by the server's clock in ms, and
-- notes what Inspect shows of it. All three end with the last hold: without the name nothing is held.
--
-- Most locks have no queue: this part needs nothing of the rest.
local holders, notes, queue, tickets = KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local kind, limit = ARGV[4], tonumber(string.sub(ARGV[4], 2))
local marker = limit and 'shared permits ' .. string.sub(kind, 2) or 'shared read'
local owner = string.sub(ARGV[1], 1, 36)
local place = owner .. kind
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)

-- grant adds a holder, or lets one hold on that held until an end. first is its first fence.
--
-- A server may refuse any command, and what was done before stays. So the first one that may be refused is the one that
-- lets keys end, and the marker comes last: without it nothing is held, and a writer holds on.
local function grant(value, ends, first)
  local id = fence(KEYS[6])
  ends = math.max(t[1] * 1000 + math.ceil(t[2] / 1000) + ARGV[2], ends or 0)
  if value ~= marker then
    redis.call('DEL', holders, notes) -- of a name that was deleted
  end
  local last = math.max(ends, redis.call('ZRANGE', holders, -1, -1, 'WITHSCORES')[2] or 0)
  redis.call('PEXPIREAT', KEYS[1], last)
  redis.call('ZADD', holders, ends, owner)
  redis.call('PEXPIREAT', holders, last)
  redis.call('HSET', notes, owner, string.sub(ARGV[1], 38) .. id .. (first and ',' .. first or ''))
  redis.call('PEXPIREAT', notes, last)
  if value ~= marker then
    redis.call('SET', KEYS[1], marker, 'PXAT', last)
  end
  return id
end

-- lastWord returns what stands behind the metadata, which begin at init.
local function lastWord(note, init)
  return string.sub(note, (string.find(note, ' ', init, true) or #note) + 1)
end

-- regrant lets a holder hold on, under a greater fence. It makes a writer a reader.
local function regrant(value, left)
  if value == marker then
    local ends = tonumber(redis.call('ZSCORE', holders, owner) or 0)
    return ends > now and grant(value, ends, string.match(lastWord(redis.call('HGET', notes, owner) or '', 1), '[^,]*$'))
  end
  if kind == 'r' and string.sub(value, 1, 37) == owner .. ' ' and string.sub(value, -1) == 'w' then
    local first = string.match(lastWord(value, 38), '([%d%-]*)w$')
    if string.sub(first, 1, 1) == '-' then -- minus the TTL of a hold that was taken without a script
      first = string.format('%.0f-0', now + left + first)
    end
    return grant(value, now + left + 1, first) -- the clock may have gone on since
  end
end

-- count drops the holders that have ended, and returns how many there are.
local function count()
  for _, ended in ipairs(redis.call('ZRANGEBYSCORE', holders, 0, now)) do
    redis.call('ZREM', holders, ended)
    redis.call('HDEL', notes, ended)
  end
  return redis.call('ZCARD', holders)
end

local seen = redis.pcall('GET', KEYS[1])
if (not seen or seen == marker) and redis.call('EXISTS', queue) == 0 then
  local id = seen and regrant(seen)
  if id then
    return id
  end
  if not seen or count() < (limit or math.huge) then
    return grant(seen)
  end
end
