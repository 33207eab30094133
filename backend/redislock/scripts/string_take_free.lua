-- KEYS: name, queue, tickets, fence counter. ARGV: "owner meta ", TTL, whether a ticket in
-- the queue is wanted.
--
-- Most locks are free, and without waiters or taken by the first of them: this part needs nothing
-- of the rest.
local function set(first, ttl)
  local id = fence(KEYS[#KEYS])
  redis.call('SET', KEYS[1], ARGV[1] .. id .. first, 'PX', ttl)
  return id
end

local there = redis.call('EXISTS', KEYS[1], KEYS[2])
if there == 0 then
  return set('', ARGV[2])
end

local owner = string.sub(ARGV[1], 1, 36)
if there == 1 and ARGV[3] == '1' and redis.call('LINDEX', KEYS[2], 0) == owner then -- so nothing is held
  redis.call('LREM', KEYS[2], 1, owner)
  redis.call('ZREM', KEYS[3], owner)
  return set('', ARGV[2])
end
