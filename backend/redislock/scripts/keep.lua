-- Renews a batch. KEYS: the same number for each hold, then the fence counter if there is a
-- floor. ARGV: field and TTL of each hold, in the layout "string" its fence too, then the floor.
-- keep(at, field, ttl, id) renews one hold, whose first key is KEYS[at]. The answer has a 1 or 0 for each.
local function batch(keep, words)
  local floor = #ARGV % words
  local holds = (#ARGV - floor) / words
  local each = (#KEYS - floor) / holds
  local held = {}
  for i = 1, holds do
    local from = (i - 1) * words
    held[i] = keep((i - 1) * each + 1, ARGV[from + 1], ARGV[from + 2], ARGV[from + 3]) and 1 or lost(KEYS[1])
  end
  if floor == 1 and held[1] == 1 then
    raise(KEYS[#KEYS], ARGV[#ARGV])
  end
  return table.concat(held)
end

-- gt says that PEXPIRE has GT: that came with Redis 7.0, as the number of the version did.
local call, gt = redis.call, redis.REDIS_VERSION_NUM

-- lengthen lets a key live for at least ttl, and reports whether the key exists. A renewal may
-- arrive late, after one for longer, and must not shorten the life.
-- It is a write in any case, because a replica shows itself by refusing to write, and WAIT
-- waits for nothing behind a command that changed nothing.
local function lengthen(key, ttl)
  if gt and call('PEXPIRE', key, ttl, 'GT') == 1 then
    return true
  end
  local left = call('PTTL', key)
  if left == -1 and gt then
    return true
  end
  return call('PEXPIRE', key, math.max(ttl, left)) == 1
end
