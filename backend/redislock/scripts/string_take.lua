-- A lock that is held, or waited for.
local call = redis.call
queue, tickets = KEYS[2], KEYS[3]
local first, ttl = '', ARGV[2]
local value, other = read('GET', KEYS[1])
if other then
  return other
end
if value and string.sub(value, 1, 37) == string.sub(ARGV[1], 1, 37) then
  first = string.match(value, '[^ ,]*$')
  first = string.find(first, '^%-') and '' or ',' .. first
  ttl = math.max(ttl, call('PTTL', KEYS[1]))
  sweep(clock())
else
  local left = value and call('PTTL', KEYS[1]) or -2
  if value and not isLockString(value, left) then
    return noLock(left == -1 and 'a string without a TTL' or 'a string that is no token')
  end
  left = refuse(owner, left, ARGV[3] == '1', tonumber(ARGV[2]))
  if left then
    return {left, value}
  end
end
return set(first, ttl)
