-- freed notifies the first waiter in the queue, or all other waiters if the queue is empty.
-- In Java both kinds may wait for one lock, and the latter do not respect the queue. Java notifies
-- each waiter in the queue on a channel of its own, and ours beside Java's too. Java reads 00 as 0, and
-- ours ignore it.
local function freed(channel)
  local first = ask('LINDEX', queue, 0) -- other data there is no queue
  first = first and lasting(first, clock())
  if first then
    publish(channel .. ':' .. first, '0')
  end
  publish(channel, first and '00' or '0')
end

-- quit ends a ticket. If the lock is free and the ticket was the first one, or there is none, the first waiter is
-- notified: who repeats a release, or has deleted the lock without a script, may owe it that.
local function quit(who, name, channel)
  if redis.call('EXISTS', queue) == 0 or not ask('LINDEX', queue, 0) then
    return lost(name)
  end
  local first = sweep(clock())
  local left = leave(who)
  if (first == who or not left) and redis.call('EXISTS', name) == 0 then
    freed(channel)
  end
  return left and 1 or 0
end
