-- KEYS: name. ARGV: owner, or the whole value of a lock that is not ours; channel.
local value = ask('GET', KEYS[1])
if not value or (string.sub(value, 1, 37) ~= ARGV[1] .. ' ' and value ~= ARGV[1]) then
  return 0
end
redis.call('DEL', KEYS[1])
publish(ARGV[2], '0')
return 1
