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
