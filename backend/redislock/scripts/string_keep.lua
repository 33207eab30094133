-- KEYS: name of each.
return batch(function(at, owner, ttl, exact)
  local value = ask('GET', KEYS[at])
  if not value or string.sub(value, 1, 37) ~= owner .. ' ' then
    return false
  end
  return redis.call('PEXPIRE', KEYS[at], longer(redis.call('PTTL', KEYS[at]), ttl, exact)) == 1
end)
