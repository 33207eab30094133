-- A lock that is held, or waited for.
local call = redis.call
line, places = KEYS[2], KEYS[3]
local first, ttl = '', ARGV[2]
local value = call('GET', KEYS[1])
if value and string.sub(value, 1, 37) == string.sub(ARGV[1], 1, 37) then
  first = ',' .. string.match(value, '[^ ,]*$')
  ttl = math.max(ttl, call('PTTL', KEYS[1]))
  sweep(clock())
else
  local left = refuse(string.sub(ARGV[1], 1, 36), call('PTTL', KEYS[1]), ARGV[3] == '1', tonumber(ARGV[2]))
  if left then
    return {left, value}
  end
end
return set(first, ttl) .. (call('EXISTS', line) == 1 and '+' or '')
