-- publish tells those who wait.
local function publish(channel, message)
  redis.call('PUBLISH', channel, message)
end
