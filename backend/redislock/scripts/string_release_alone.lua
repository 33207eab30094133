-- KEYS: name, holders and notes but for an exclusive hold, queue, places. ARGV: owner, or the whole value of a lock
-- that is not ours; channel.
--
-- Most locks are waited for by nobody: this part needs nothing of the rest.
local queue, tickets = KEYS[#KEYS - 1], KEYS[#KEYS]
local value = redis.pcall('GET', KEYS[1])
local held = type(value) == 'string' and (string.sub(value, 1, 37) == ARGV[1] .. ' ' or value == ARGV[1])
if held then
  redis.call('DEL', KEYS[1])
  if redis.call('EXISTS', queue) == 0 then
    redis.call('PUBLISH', ARGV[2], '0')
    return 1
  end
end
