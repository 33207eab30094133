-- KEYS: name, line, places, fence counter. ARGV: "owner meta ", TTL, whether a place in
-- line is wanted. A plus behind the answer says that others stand in line.
local call = redis.call
local first, others = '', ''
if call('EXISTS', KEYS[1], KEYS[2]) > 0 then
  line, places = KEYS[2], KEYS[3]
  local value = call('GET', KEYS[1])
  if value and string.sub(value, 1, 37) == string.sub(ARGV[1], 1, 37) then
    first = ',' .. string.match(value, '[^ ,]*$')
    sweep(clock())
  else
    local left = refuse(string.sub(ARGV[1], 1, 36), call('PTTL', KEYS[1]), ARGV[3] == '1', tonumber(ARGV[2]))
    if left then
      return {left, value}
    end
  end
  others = call('EXISTS', line) == 1 and '+' or ''
end
local id = fence(KEYS[#KEYS])
call('SET', KEYS[1], ARGV[1] .. id .. first, 'PX', ARGV[2])
return id .. others
