-- RLock. KEYS: name, hold, queue of the fair lock. ARGV: field, channel.
local seen = ask('HMGET', KEYS[1], ARGV[1], 'mode')
if not seen or not seen[1] or seen[2] then
  return 0
end
redis.call('DEL', KEYS[1], KEYS[2])
publish(ARGV[2], '0')
-- Java's fair waiters each listen to a channel of their own.
sweep()
local head = redis.call('LINDEX', KEYS[3], 0)
if head then
  publish(ARGV[2] .. ':' .. head, '0')
end
return 1
