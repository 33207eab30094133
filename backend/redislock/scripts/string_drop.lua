-- KEYS: name, line, places. ARGV: owner, or the whole value of a lock that is not ours;
-- channel.
line, places = KEYS[2], KEYS[3]
local value = ask('GET', KEYS[1])
if not value or (string.sub(value, 1, 37) ~= ARGV[1] .. ' ' and value ~= ARGV[1]) then
  return quit(ARGV[1], KEYS[1], ARGV[2])
end
redis.call('DEL', KEYS[1])
freed(ARGV[2])
return 1
