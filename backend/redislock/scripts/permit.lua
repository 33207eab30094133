-- now returns the server's clock in ms, as RPermitExpirableSemaphore keeps the ends of its
-- permits, rounded down and up. A life is counted from the latter, so that it is not
-- short; whether a permit has ended is asked of the former.
local function now()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000), t[1] * 1000 + math.ceil(t[2] / 1000)
end

-- together lets the counter and the permits of a semaphore end in the same millisecond, at ends or
-- later: their lives are not shortened. The clock may go on during a script, so it is read
-- after the lives.
local function together(counter, permits, ends)
  local left = math.max(redis.call('PTTL', counter), redis.call('PTTL', permits))
  local at = math.max(ends, now() + left)
  redis.call('PEXPIREAT', counter, at)
  redis.call('PEXPIREAT', permits, at)
end
