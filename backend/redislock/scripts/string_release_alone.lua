-- KEYS: name, queue, tickets. ARGV: owner, or the whole value of a lock that is not ours;
-- channel.
local value = ask('GET', KEYS[1])
local held = value and (string.sub(value, 1, 37) == ARGV[1] .. ' ' or value == ARGV[1])
if held then
  redis.call('DEL', KEYS[1])
  if redis.call('EXISTS', KEYS[2]) == 0 then
    publish(ARGV[2], '0')
    return 1
  end
end
