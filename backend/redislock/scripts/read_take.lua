-- A reader of RReadWriteLock. KEYS: name, hold, the reader's timeout, fence counter.
-- ARGV: field, TTL, "owner meta ", channel, base of the timeouts' names.
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
if seen[3] then
  -- Downgrade: other readers may enter from now on.
  call('HDEL', KEYS[1], writer)
  publish(ARGV[4], '1')
end
call('HSET', KEYS[1], 'mode', 'read', ARGV[1], 1)
call('SET', KEYS[3], 1, 'PX', ARGV[2])
if seen[2] or seen[3] then
  settle(KEYS[1], ARGV[5], ARGV[2])
elseif call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
  call('PEXPIRE', KEYS[1], ARGV[2])
end
remember(KEYS[2], ARGV[3], id, ARGV[2], seen[2] or seen[3])
return id
