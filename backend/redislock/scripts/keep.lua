-- Renews a batch. KEYS: so many of each hold, then the fence counter if there is a
-- floor. ARGV: writer and TTL of each hold, then the floor; a TTL below zero is the exact
-- life that the hold gets. keep(at, writer, ttl, exact) does one hold, whose first key is
-- KEYS[at]. The answer has a 1 or 0 for each.
local function batch(keep)
  local floor = #ARGV % 2
  local holds = (#ARGV - floor) / 2
  local each = (#KEYS - floor) / holds
  local held = {}
  for i = 1, holds do
    local ttl = tonumber(ARGV[2 * i])
    held[i] = keep((i - 1) * each + 1, ARGV[2 * i - 1], math.abs(ttl), ttl < 0) and 1 or lost(KEYS[1])
  end
  if floor == 1 and held[1] == 1 then
    raise(KEYS[#KEYS], ARGV[#ARGV])
  end
  return table.concat(held)
end

-- longer returns the new life of a hold that has left ms. A renewal may arrive late, after
-- one for longer, and must not shorten the life. The caller writes the result even if it
-- changes nothing, because a replica shows itself by refusing to write.
local function longer(left, ttl, exact)
  return exact and ttl or math.max(left, ttl)
end
