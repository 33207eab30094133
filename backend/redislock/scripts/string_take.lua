-- A lock that is held, or waited for.
local call = redis.call
line, places = KEYS[2], KEYS[3]
local first = ''
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
return set(first) .. (call('EXISTS', line) == 1 and '+' or '')
