-- RLock and RFairLock. KEYS: name, hold, queue, tickets, scores. ARGV: field, channel.
queue, tickets, scores = KEYS[3], KEYS[4], KEYS[5]
local seen = ask('HMGET', KEYS[1], ARGV[1], 'mode')
if not seen or not seen[1] or seen[2] then
  return quit(ARGV[1], KEYS[1], ARGV[2])
end
redis.call('DEL', KEYS[1], KEYS[2])
freed(ARGV[2])
return 1
