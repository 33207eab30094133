-- now returns the server's clock in ms, as RPermitExpirableSemaphore keeps the ends of its
-- permits, rounded down and up. A life is counted from the latter, so that it is not
-- short; whether a permit has ended is asked of the former.
local function now()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000), t[1] * 1000 + math.ceil(t[2] / 1000)
end

-- together lets the counter and the permits of a semaphore end in the same millisecond.
local function together(at)
  redis.call('PEXPIREAT', KEYS[1], at)
  redis.call('PEXPIREAT', KEYS[3], at)
end
