-- redisson_write_renew, as it is sent where messages are not sharded. Generated: go test -run ComposedScripts -args -update
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
-- Renews a batch. KEYS: the same number for each hold, then the fence counter if there is a
-- floor. ARGV: field and TTL of each hold, in the layout "string" its fence too, then the floor.
-- keep(at, field, ttl, id) renews one hold, whose first key is KEYS[at]. The answer has a 1 or 0 for each.
local function batch(keep, words)
  local floor = #ARGV % words
  local holds = (#ARGV - floor) / words
  local each = (#KEYS - floor) / holds
  local held = {}
  for i = 1, holds do
    local from = (i - 1) * words
    held[i] = keep((i - 1) * each + 1, ARGV[from + 1], ARGV[from + 2], ARGV[from + 3]) and 1 or lost(KEYS[1])
  end
  if floor == 1 and held[1] == 1 then
    raise(KEYS[#KEYS], ARGV[#ARGV])
  end
  return table.concat(held)
end

-- gt says that PEXPIRE has GT: that came with Redis 7.0, as the number of the version did.
local call, gt = redis.call, redis.REDIS_VERSION_NUM

-- lengthen lets a key live for at least ttl, and reports whether the key exists. A renewal may
-- arrive late, after one for longer, and must not shorten the life.
-- It is a write in any case, because a replica shows itself by refusing to write, and WAIT
-- waits for nothing behind a command that changed nothing.
local function lengthen(key, ttl)
  if gt and call('PEXPIRE', key, ttl, 'GT') == 1 then
    return true
  end
  local left = call('PTTL', key)
  if left == -1 and gt then
    return true
  end
  return call('PEXPIRE', key, math.max(ttl, left)) == 1
end
-- RLock, and the writer of RReadWriteLock. KEYS: name and hold of each.
return batch(function(at, field, ttl)
  if ask('HEXISTS', KEYS[at], field) ~= 1 then
    return false
  end
  lengthen(KEYS[at + 1], ttl)
  return lengthen(KEYS[at], ttl)
end, 2)
