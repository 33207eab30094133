-- publish tells those who wait, wherever they listen.
local function publish(channel, message)
  redis.call('SPUBLISH', channel, message)
  redis.call('PUBLISH', channel, message)
end
