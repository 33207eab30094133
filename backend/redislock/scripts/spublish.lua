-- publish notifies waiters, in the cluster's slot only.
local function publish(channel, message)
  redis.call('SPUBLISH', channel, message)
end
