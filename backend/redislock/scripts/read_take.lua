-- A reader of RReadWriteLock. KEYS: name, hold, the reader's timeout, fence counter.
-- ARGV: field, TTL, "owner meta ", channel.
local call = redis.call
local writer = ARGV[1] .. ':write'
local seen, other = read('HMGET', KEYS[1], 'mode', ARGV[1], writer)
if other then
  return other
end
local left = call('PTTL', KEYS[1])
if left ~= -2 and not isMode(seen[1], left) then
  return isHeld(KEYS[1]) and redis.error_reply('INVALID this name is a mutex') or noLock('a hash with other fields than a read/write lock')
end
if seen[1] == 'write' and not seen[3] then
  return {left}
end

local id = fence(KEYS[4])
local ttl = ARGV[2]
if seen[2] or seen[3] then
  ttl = math.max(ttl, seen[3] and left or call('PTTL', KEYS[3]))
end
-- What may be refused without harm comes first: the other readers enter at the HSET, and what it makes ends.
call('SET', KEYS[3], 1, 'PX', ttl)
local life = math.max(ttl, left)
call('PEXPIRE', KEYS[1], life)
if seen[3] then
  call('HDEL', KEYS[1], '') -- which is never there
end
call('HSET', KEYS[1], 'mode', 'read', ARGV[1], 1)
if seen[3] then
  call('HDEL', KEYS[1], writer) -- downgrade
elseif left == -2 then
  call('PEXPIRE', KEYS[1], life)
end
remember(KEYS[2], ARGV[3], id, ttl, seen[2] or seen[3])
if seen[3] then
  publish(ARGV[4], '1') -- last, since the user may not have the right to
end
return id
