-- Renews a batch. KEYS: so many of each hold, then the fence counter if there is a
-- floor. ARGV: writer and TTL of each hold, then the floor. keep(at, writer, ttl) does
-- one hold, whose first key is KEYS[at]. The answer has a 1 or 0 for each.
local function batch(keep)
  local floor = #ARGV % 2
  local holds = (#ARGV - floor) / 2
  local each = (#KEYS - floor) / holds
  local held = {}
  for i = 1, holds do
    held[i] = keep((i - 1) * each + 1, ARGV[2 * i - 1], ARGV[2 * i]) and 1 or lost(KEYS[1])
  end
  if floor == 1 and held[1] == 1 then
    raise(KEYS[#KEYS], ARGV[#ARGV])
  end
  return table.concat(held)
end
