-- string_write_renew, as it is sent where messages are not sharded. Generated: go test -run ComposedScripts -args -update
-- Fences of the string layout: ids of a stream, ms-sequence, which XADD makes greater
-- than the last one and at least the clock, in one command. The
-- number is ms * 1000 + sequence: so the first of a millisecond starts with the
-- clock's microseconds, to be greater than what a counter had given that was lost
-- within it; and where a thousand are used up, the next millisecond is taken in advance.
--
-- The last entries are kept for drawn.lua: a hundred thousand, or a hundred of each slot of a cluster, whose key ends in a brace.
local function add(key, id)
  return redis.call('XADD', key, 'MAXLEN', '~', string.sub(key, -1) == '}' and 100 or 100000, id, '', '')
end

local function fence(key)
  local id = add(key, '*')
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
    add(key, next)
  end
  return next or id
end

-- A floor that is no greater than the last id is refused, and needs nothing.
local function raise(key, floor)
  local r = redis.pcall('XADD', key, floor, '', '')
  if type(r) == 'table' and r.err and not string.find(r.err, 'equal or smaller', 1, true) then
    error(r.err)
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
-- KEYS: name of each. The first renewal writes the fence, which a plain acquire did not know. If it is not known now either,
-- what stands there still says when the hold began.
return batch(function(at, owner, ttl, id)
  local value = ask('GET', KEYS[at])
  if not value or string.sub(value, 1, 37) ~= owner .. ' ' then
    return false
  end
  local last = string.find(value, ' -', 38, true)
  local left = last and id == '' and call('PTTL', KEYS[at])
  local kept = lengthen(KEYS[at], ttl) -- first: Redis without memory refuses SET unless the script has written
  if last then
    if left then
      id = string.format('-%.0f', string.match(value, '^%d+', last + 2) + call('PTTL', KEYS[at]) - left)
    end
    call('SET', KEYS[at], string.sub(value, 1, last) .. id .. (string.sub(value, -1) == 'w' and 'w' or ''), 'KEEPTTL')
  end
  return kept
end, 3)
