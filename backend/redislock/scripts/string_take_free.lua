-- KEYS: name, line, places, fence counter. ARGV: "owner meta ", TTL, whether a place in
-- line is wanted. A plus behind the answer says that others stand in line.
--
-- Most locks are free, and nobody waits: that comes before all that a line needs.
local function set(first, ttl)
  local id = fence(KEYS[#KEYS])
  redis.call('SET', KEYS[1], ARGV[1] .. id .. first, 'PX', ttl)
  return id
end

if redis.call('EXISTS', KEYS[1], KEYS[2]) == 0 then
  return set('', ARGV[2])
end
