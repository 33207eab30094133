-- The writer of RReadWriteLock. KEYS: name, hold, -, fence counter. ARGV: field, TTL,
-- "owner meta ".
local call = redis.call
local writer = ARGV[1] .. ':write'
local seen, other = read('HMGET', KEYS[1], 'mode', writer)
if other then
  return other
end
if seen[1] and not seen[2] then
  local left = call('PTTL', KEYS[1])
  return isMode(seen[1], left) and {left} or noLock('a hash with other fields than a read/write lock')
end
if not seen[1] and call('EXISTS', KEYS[1]) == 1 then
  return isHeld(KEYS[1]) and redis.error_reply('INVALID this name is a mutex') or noLock('a hash with other fields than a read/write lock')
end
local id = fence(KEYS[4])
local ttl = seen[2] and math.max(ARGV[2], call('PTTL', KEYS[1])) or ARGV[2]
call('PEXPIRE', KEYS[1], ttl) -- also first: if that is refused, no key stays without an end
call('HSET', KEYS[1], 'mode', 'write', writer, 1)
call('PEXPIRE', KEYS[1], ttl)
remember(KEYS[2], ARGV[3], id, ttl, seen[2])
return id
