-- KEYS: name, fence counter. ARGV: "owner meta ", TTL.
local call = redis.call
if call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  -- A counter that can't be used must not leave a lock behind that nobody holds.
  local ok, id = pcall(fence, KEYS[2])
  if not ok then
    call('DEL', KEYS[1])
    error(id)
  end
  call('APPEND', KEYS[1], id)
  return id
end

local value = call('GET', KEYS[1])
if string.sub(value, 1, 37) ~= string.sub(ARGV[1], 1, 37) then
  return {call('PTTL', KEYS[1]), value}
end
local id = fence(KEYS[2])
call('SET', KEYS[1], ARGV[1] .. id .. ',' .. string.match(value, '[^ ,]*$'), 'PX', ARGV[2])
return id
