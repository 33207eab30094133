-- KEYS: name, holders and notes but for an exclusive hold, queue, places. ARGV: owner, or the whole value of a lock
-- that is not ours; channel.
local queue, tickets = KEYS[#KEYS - 1], KEYS[#KEYS]
local value = ask('GET', KEYS[1])
local held = value and (string.sub(value, 1, 37) == ARGV[1] .. ' ' or value == ARGV[1])
if held then
  redis.call('DEL', KEYS[1])
  if redis.call('EXISTS', queue) == 0 then
    publish(ARGV[2], '0')
    return 1
  end
end
