-- A permit. KEYS: name, hold, permits. ARGV: permit id, channel.
local call = redis.call
local ends = ask('ZSCORE', KEYS[3], ARGV[1])
if not ends then
  return lost(KEYS[1])
end
call('ZREM', KEYS[3], ARGV[1])
call('DEL', KEYS[2])
local free = 1
if call('EXISTS', KEYS[1]) == 1 then
  free = call('INCR', KEYS[1])
end
if free > 0 then
  publish(ARGV[2], free)
end
-- One whose end had passed goes back too, but its holder had lost it.
return tonumber(ends) > now() and 1 or 0
