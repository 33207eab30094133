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
