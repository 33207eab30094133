-- An exclusive hold, or a writer's: the same thing but for a w at the end. KEYS: name, any, queue, places, fence counter.
-- ARGV: "owner meta ", TTL, whether a place in the queue is wanted, w for a writer.
--
-- Most locks are free, and without waiters or taken by the first of them: this part needs nothing
-- of the rest.
local queue, tickets = KEYS[#KEYS - 2], KEYS[#KEYS - 1]
local kind, letter, holders = 'x', ARGV[4] or '', nil
local owner = string.sub(ARGV[1], 1, 36)
local place = owner .. letter

local function grant(first, ttl)
  local id = fence(KEYS[#KEYS])
  redis.call('SET', KEYS[1], ARGV[1] .. id .. (first or '') .. letter, 'PX', ttl or ARGV[2])
  return id
end

local there = redis.call('EXISTS', KEYS[1], queue)
if there == 0 then
  return grant()
end
if there == 1 and ARGV[3] == '1' and redis.call('LINDEX', queue, 0) == place then -- so nothing is held
  local id = grant() -- first: if it is refused, the place stays
  redis.call('LREM', queue, 1, place)
  redis.call('ZREM', tickets, place)
  return id
end

-- regrant lets the holder hold on, under a greater fence. A hold that was taken without a script has minus its TTL
-- where the first fence would be.
local function regrant(value, left)
  if string.sub(value, 1, 37) ~= owner .. ' ' then
    return nil
  end
  local at = string.find(value, ' ', 38, true) or #value
  local first = string.match(string.sub(value, at + 1), '([%d%-]*)w?$')
  if string.sub(first, 1, 1) == '-' then
    local t = redis.call('TIME')
    first = string.format('%.0f-0', t[1] * 1000 + math.floor(t[2] / 1000) + left + first)
  end
  return grant(',' .. first, math.max(ARGV[2], left))
end
