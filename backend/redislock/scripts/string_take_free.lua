-- KEYS: name, queue, tickets, fence counter. ARGV: "owner meta ", TTL, whether a ticket in
-- the queue is wanted.
--
-- Most locks are free and without waiters: this part needs nothing of the queue.
local function set(first, ttl)
  local id = fence(KEYS[#KEYS])
  redis.call('SET', KEYS[1], ARGV[1] .. id .. first, 'PX', ttl)
  return id
end

if redis.call('EXISTS', KEYS[1], KEYS[2]) == 0 then
  return set('', ARGV[2])
end
