-- RLock, and the writer of RReadWriteLock. KEYS: name and hold of each.
return batch(function(at, field, ttl)
  if ask('HEXISTS', KEYS[at], field) ~= 1 then
    return false
  end
  lengthen(KEYS[at + 1], ttl)
  return lengthen(KEYS[at], ttl)
end, 2)
