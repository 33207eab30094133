-- RPermitExpirableSemaphore. KEYS: name (free permits), hold, permits, fence counter.
-- ARGV: permit id, TTL, "owner meta ", channel, limit.
local call = redis.call
local free, other = read('GET', KEYS[1])
if other then
  return other
end
local ends = free and call('PTTL', KEYS[1])
if free and not (string.match(free, '^-?%d+$') and (ends == -1 or call('EXISTS', KEYS[3]) == 1)) then
  return isLockString(free, ends) and redis.error_reply('INVALID this name is a mutex') or noLock('a string that is no semaphore')
end
free = free and tonumber(free)

local t, from = now()
-- What changes the permits tries first whether it may change the counter, or else a permit would be lost.
local back = call('ZCOUNT', KEYS[3], 0, t)
local held = call('ZCARD', KEYS[3]) - back
if back > 0 and free then
  call('INCRBY', KEYS[1], 0)
end
call('ZREMRANGEBYSCORE', KEYS[3], 0, t)
if back > 0 and free then
  free = call('INCRBY', KEYS[1], back)
  if free > 0 then
    publish(ARGV[4], free)
  end
end

local limit = tonumber(ARGV[5])
local total = free and free + held or limit
if total ~= limit then
  return redis.error_reply('INVALID this semaphore has ' .. string.format('%d', total) .. ' permits')
end
local again = call('ZSCORE', KEYS[3], ARGV[1])
if not again and limit - held < 1 then
  local first = call('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES')[2]
  return {first and math.max(1, tonumber(first) - t) or -1}
end

local id = fence(KEYS[4])
if not free then
  call('SET', KEYS[1], limit - held)
end
call('INCRBY', KEYS[1], 0)
local last = math.max(from + ARGV[2], again or 0)
if call('ZADD', KEYS[3], last, ARGV[1]) == 1 then
  call('INCRBY', KEYS[1], -1)
end
if free and ends >= 0 then -- it was made to end
  together(KEYS[1], KEYS[3], last)
end
remember(KEYS[2], ARGV[3], id, again and last - from or ARGV[2], again)
return id
