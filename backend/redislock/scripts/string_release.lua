-- There is a queue, or nothing was held alone.
if held then
  for _, who in ipairs({ARGV[1], ARGV[1] .. 'w'}) do -- who had a place, and took the lock beside the queue, without knowing
    if redis.pcall('ZREM', tickets, who) == 1 then
      redis.pcall('LREM', queue, 1, who)
    end
  end
  wake(ARGV[2])
  return 1
end

value = ask('GET', KEYS[1])
local kind, room = sharing(value)
local ends = room and room > 0 and #KEYS == 5 and ask('ZSCORE', KEYS[2], ARGV[1])
local now = clock()
if ends and tonumber(ends) > now then -- its owner may have a place behind one that has ended
  local others = redis.call('ZCOUNT', KEYS[2], '(' .. now, '+inf') - 1
  if others == 0 then
    redis.call('DEL', KEYS[1], KEYS[2], KEYS[3])
    wake(ARGV[2])
    return 1
  end
  local last = redis.call('ZRANGE', KEYS[2], -2, -1, 'WITHSCORES') -- of others: the one before ours, if ours is the last
  for at = 1, last[3] == ARGV[1] and 3 or 0 do
    redis.call('PEXPIREAT', KEYS[at], last[2])
  end
  redis.call('HDEL', KEYS[3], ARGV[1])
  redis.call('ZREM', KEYS[2], ARGV[1]) -- last: if anything is refused, it is done when the release is repeated
  if kind ~= 'r' then
    wake(ARGV[2], kind, room - others)
  end
  return 1
end

-- A place, of whatever kind. It may have kept others out. Who repeats a release, or has deleted the lock without a
-- script, may owe the first waiter a message.
local first = ask('LINDEX', queue, 0)
if first then
  sweep(now)
  for _, as in ipairs({'', 'w', 'r', 'p'}) do
    local who = ARGV[1] .. (as == 'p' and permits(kind, first) or as)
    if redis.call('ZSCORE', tickets, who) then
      leave(who)
      wake(ARGV[2], kind, room)
      return 1
    end
  end
  if not value then
    wake(ARGV[2])
  end
end
return lost(KEYS[1])
