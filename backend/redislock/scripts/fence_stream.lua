-- Fences of the string layout. The id of a stream entry is max(last + 1, clock), made
-- in one command; no entry is kept. A thousand ids in one millisecond are as many as
-- the number made of it (ms * 1000 + sequence) can tell apart: then the next
-- millisecond is taken in advance.
local function fence(key)
  local id = redis.call('XADD', key, 'MAXLEN', 0, '*', '', '')
  if not string.find(id, '-', -4, true) then
    id = string.format('%.0f-0', tonumber(string.match(id, '^%d+')) + 1)
    redis.call('XADD', key, 'MAXLEN', 0, id, '', '')
  end
  return id
end

-- A floor that is no greater than the last id is refused, and needs nothing.
local function raise(key, floor)
  local r = redis.pcall('XADD', key, 'MAXLEN', 0, floor, '', '')
  if type(r) == 'table' and r.err and not string.find(r.err, 'equal or smaller', 1, true) then
    error(r.err)
  end
end
