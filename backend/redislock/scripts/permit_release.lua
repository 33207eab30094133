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
