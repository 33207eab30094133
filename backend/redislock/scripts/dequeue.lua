-- freed notifies the first waiter in the queue, or all other waiters if the queue is empty.
-- In Java both kinds may wait for one lock, and the latter do not respect the queue. Java notifies
-- each waiter in the queue on a channel of its own, and ours beside Java's too. Java reads 00 as 0, and
-- ours ignore it. Otherwise the waiters of a client share a channel, named after the common start of
-- their Owners, and the message names the waiter.
local function freed(channel)
  local first = ask('LINDEX', queue, 0) -- other data there is no queue
  first = first and lasting(first, clock())
  if first and scores then
    publish(channel .. ':' .. first, '0')
  elseif first then
    publish(channel .. ':' .. string.sub(first, 1, 18), first)
  end
  if scores or not first then
    publish(channel, first and '00' or '0')
  end
end

-- quit ends a ticket. If it was the first one and the lock is free, the next waiter is notified.
local function quit(who, name, channel)
  if redis.call('EXISTS', queue) == 0 or not ask('LINDEX', queue, 0) then
    return lost(name)
  end
  local first = sweep(clock())
  if not leave(who) then
    return 0
  end
  if first == who and redis.call('EXISTS', name) == 0 then
    freed(channel)
  end
  return 1
end
