-- redisson_write_release, as it is sent where messages are not sharded. Generated: go test -run ComposedScripts -args -update
-- ask lets a key that has become another type mean that the hold is gone.
local function ask(...)
  local r = redis.pcall(...)
  if type(r) == 'table' and r.err then
    if string.find(r.err, 'WRONGTYPE', 1, true) then
      return false
    end
    error(r.err)
  end
  return r
end
-- lost answers that nothing is held. Only a master knows that: the data of a replica, also of one
-- that was a master, may be old. A replica shows itself by refusing to write. This write
-- changes nothing: no stream has an entry 0-0.
local function lost(key)
  ask('XDEL', key, '0-0')
  return 0
end
-- publish notifies waiters.
local function publish(channel, message)
  redis.call('PUBLISH', channel, message)
end
-- The longest life among the readers of a read/write lock: each of their holds has a
-- key that ends when the hold does. The fields of readers that have ended are removed.
local function life(name, base)
  local longest = 0
  local fields = redis.call('HGETALL', name)
  for i = 1, #fields, 2 do
    local holds, left = tonumber(fields[i + 1]), -2
    for hold = 1, holds or 0 do
      left = math.max(left, redis.call('PTTL', base .. ':' .. fields[i] .. ':rwlock_timeout:' .. hold))
    end
    longest = math.max(longest, left)
    if holds and left == -2 then
      redis.call('HDEL', name, fields[i])
    end
  end
  return longest
end
-- Either side of RReadWriteLock: after a downgrade whose answer was lost the side is
-- unknown. KEYS: name, hold, the reader's timeout. ARGV: field, channel, base of
-- the timeouts' names.
local call = redis.call
local writer = ARGV[1] .. ':write'
local seen = ask('HMGET', KEYS[1], 'mode', ARGV[1], writer)
if not seen or not seen[1] or not (seen[2] or seen[3]) then
  return lost(KEYS[1])
end
local held = (seen[3] or call('EXISTS', KEYS[3]) == 1) and 1 or 0
local others = call('HLEN', KEYS[1]) - (seen[2] and 1 or 0) - (seen[3] and 1 or 0) > 1
if others then
  call('HDEL', KEYS[1], ARGV[1], writer)
  call('DEL', KEYS[2], KEYS[3])
  if seen[1] == 'write' and not seen[3] then
    return held -- a reader of old; the writer goes on
  end
  local left = seen[1] == 'read' and life(KEYS[1], ARGV[3]) or 0
  if left > 0 then
    call('PEXPIRE', KEYS[1], left)
    return held
  end
end
call('DEL', KEYS[1], KEYS[2], KEYS[3])
publish(ARGV[2], seen[3] and '1' or '0')
return held
