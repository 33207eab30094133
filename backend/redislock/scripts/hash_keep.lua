-- RLock, and the writer of RReadWriteLock. KEYS: name and hold of each.
return batch(function(at, field, ttl, exact)
  if ask('HEXISTS', KEYS[at], field) ~= 1 then
    return false
  end
  local life = longer(redis.call('PTTL', KEYS[at]), ttl, exact)
  redis.call('PEXPIRE', KEYS[at + 1], life)
  return redis.call('PEXPIRE', KEYS[at], life) == 1
end)
