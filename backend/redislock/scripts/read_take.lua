-- A reader of RReadWriteLock. KEYS: name, hold, the reader's timeout, fence counter.
-- ARGV: field, TTL, "owner meta ", channel.
local call = redis.call
local writer = ARGV[1] .. ':write'
local seen = call('HMGET', KEYS[1], 'mode', ARGV[1], writer)
if seen[1] == 'write' and not seen[3] then
  return {call('PTTL', KEYS[1])}
end
if not seen[1] and call('EXISTS', KEYS[1]) == 1 then
  return redis.error_reply('INVALID this name is a mutex')
end

local id = fence(KEYS[4])
local left = call('PTTL', KEYS[1])
local ttl = ARGV[2]
if seen[2] or seen[3] then
  ttl = math.max(ttl, seen[3] and left or call('PTTL', KEYS[3]))
end
if seen[3] then
  -- Downgrade: other readers may enter from now on.
  call('HDEL', KEYS[1], writer)
  publish(ARGV[4], '1')
end
call('HSET', KEYS[1], 'mode', 'read', ARGV[1], 1)
call('SET', KEYS[3], 1, 'PX', ttl)
if left < tonumber(ttl) then
  call('PEXPIRE', KEYS[1], ttl)
end
remember(KEYS[2], ARGV[3], id, ttl, seen[2] or seen[3])
return id
