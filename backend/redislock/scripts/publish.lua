-- publish notifies waiters.
local function publish(channel, message)
  redis.call('PUBLISH', channel, message)
end
