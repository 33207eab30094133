-- Readers of RReadWriteLock. KEYS: name, hold and timeout of each. A reader whose
-- timeout has ended holds no more, though its field stays as long as others read.
return batch(function(at, field, ttl)
  local seen = ask('HMGET', KEYS[at], 'mode', field)
  if not seen or seen[1] ~= 'read' or not seen[2] or redis.call('PEXPIRE', KEYS[at + 2], ttl) == 0 then
    return false
  end
  redis.call('PEXPIRE', KEYS[at + 1], ttl)
  settle(KEYS[at], string.sub(KEYS[at + 2], 1, -#(':' .. field .. ':rwlock_timeout:1') - 1), ttl)
  return true
end)
