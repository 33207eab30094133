-- The writer of RReadWriteLock. KEYS: name, hold, -, fence counter. ARGV: field, TTL,
-- "owner meta ".
local call = redis.call
local writer = ARGV[1] .. ':write'
local seen = call('HMGET', KEYS[1], 'mode', writer)
if seen[1] and not seen[2] then
  return {call('PTTL', KEYS[1])}
end
if not seen[1] and call('EXISTS', KEYS[1]) == 1 then
  return redis.error_reply('INVALID this name is a mutex')
end
local id = fence(KEYS[4])
call('HSET', KEYS[1], 'mode', 'write', writer, 1)
local ttl = seen[2] and math.max(ARGV[2], call('PTTL', KEYS[1])) or ARGV[2]
call('PEXPIRE', KEYS[1], ttl)
remember(KEYS[2], ARGV[3], id, ttl, seen[2])
return id
