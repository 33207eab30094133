-- Readers of RReadWriteLock. KEYS: name, hold and timeout of each. A reader whose
-- timeout has ended holds no more, though its field stays as long as others read.
return batch(function(at, field, ttl, exact)
  local seen = ask('HMGET', KEYS[at], 'mode', field)
  local left = seen and seen[1] == 'read' and seen[2] and redis.call('PTTL', KEYS[at + 2]) or -2
  if left == -2 then
    return false
  end
  local life = longer(left, ttl, exact)
  redis.call('PEXPIRE', KEYS[at + 2], life)
  redis.call('PEXPIRE', KEYS[at + 1], life)
  settle(KEYS[at], string.sub(KEYS[at + 2], 1, -#(':' .. field .. ':rwlock_timeout:1') - 1), life, exact)
  return true
end)
