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
