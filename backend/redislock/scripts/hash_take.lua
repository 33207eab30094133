-- RLock, RFairLock and RFencedLock. KEYS: name, hold, queue, tickets, scores, token. ARGV:
-- field, TTL, "owner meta ", whether a ticket in the queue is wanted.
local call = redis.call
local again, ttl = false, ARGV[2]
if call('EXISTS', KEYS[1], KEYS[3]) > 0 then
  queue, tickets, scores = KEYS[3], KEYS[4], KEYS[5]
  local seen, other = read('HMGET', KEYS[1], ARGV[1], 'mode')
  if other then
    return other
  end
  local left = call('PTTL', KEYS[1])
  if isMode(seen[2], left) then
    return redis.error_reply('INVALID this name is a read/write lock')
  end
  if not seen[1] and left ~= -2 and not isHeld(KEYS[1]) then
    return noLock('a hash with other fields than an RLock')
  end
  again = seen[1]
  if again then
    sweep(clock())
    ttl = math.max(ttl, left)
  else
    local told
    left, told = refuse(ARGV[1], left, ARGV[4] == '1', tonumber(ARGV[2]))
    if left then -- RSpinLock writes what RLock does, and publishes nothing: only our holds are known to
      local holder = told and string.sub(call('HKEYS', KEYS[1])[1] or '', 1, 36)
      return {left, false, holder and call('EXISTS', string.sub(KEYS[2], 1, -46) .. holder .. ':distlock') or 0}
    end
  end
end
local id = fence(KEYS[#KEYS])
call('PEXPIRE', KEYS[1], ttl) -- also first: if that is refused, no key stays without an end
call('HSET', KEYS[1], ARGV[1], 1)
call('PEXPIRE', KEYS[1], ttl)
remember(KEYS[2], ARGV[3], id, ttl, again)
return id
