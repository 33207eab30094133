-- RLock, and the writer of RReadWriteLock. KEYS: name and hold of each.
return batch(function(at, field, ttl, exact)
  if ask('HEXISTS', KEYS[at], field) ~= 1 then
    return false
  end
  lengthen(KEYS[at + 1], ttl, exact)
  return lengthen(KEYS[at], ttl, exact)
end)
