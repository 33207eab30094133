-- RLock and RFencedLock. KEYS: name, hold, queue and timeouts of the fair lock, token.
-- ARGV: field, TTL, "owner meta ".
local call = redis.call

local again = false
if call('EXISTS', KEYS[1], KEYS[3]) > 0 then
  local seen = call('HMGET', KEYS[1], ARGV[1], 'mode')
  if seen[2] then
    return redis.error_reply('INVALID this name is a read/write lock')
  end
  again = seen[1]
  if not again then
    local left = call('PTTL', KEYS[1])
    if left ~= -2 then
      return {left}
    end
    left = sweep()
    if call('EXISTS', KEYS[3]) == 1 then
      return {left or -1}
    end
  end
end

local id = fence(KEYS[5])
call('HSET', KEYS[1], ARGV[1], 1)
call('PEXPIRE', KEYS[1], ARGV[2])
remember(KEYS[2], ARGV[3], id, ARGV[2], again)
return id
