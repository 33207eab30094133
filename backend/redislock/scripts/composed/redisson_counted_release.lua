-- redisson_counted_release, as it is sent where messages are not sharded. Generated: go test -run ComposedScripts -args -update
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
-- now returns the server's clock in ms, as RPermitExpirableSemaphore keeps the ends of its
-- permits, rounded down and up. A life is counted from the latter, so that it is not
-- short; whether a permit has ended is asked of the former.
local function now()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000), t[1] * 1000 + math.ceil(t[2] / 1000)
end

-- together lets the counter and the permits of a semaphore end in the same millisecond, at ends or
-- later: their lives are not shortened. The clock may go on during a script, so it is read
-- after the lives.
local function together(counter, permits, ends)
  local left = math.max(redis.call('PTTL', counter), redis.call('PTTL', permits))
  local at = math.max(ends, now() + left)
  redis.call('PEXPIREAT', counter, at)
  redis.call('PEXPIREAT', permits, at)
end
-- A permit. KEYS: name, hold, permits. ARGV: permit id, channel.
local call = redis.call
local ends = ask('ZSCORE', KEYS[3], ARGV[1])
if not ends then
  return lost(KEYS[1])
end
call('DEL', KEYS[2]) -- first: Redis without memory refuses INCRBY unless the script has written
local there = call('EXISTS', KEYS[1]) == 1
if there then
  call('INCRBY', KEYS[1], 0) -- a permit that is taken away from the others must come back
end
call('ZREM', KEYS[3], ARGV[1])
local free = there and call('INCRBY', KEYS[1], 1) or 1
if free > 0 then
  publish(ARGV[2], free)
end
-- One whose end had passed goes back too, but its holder had lost it.
return tonumber(ends) > now() and 1 or 0
