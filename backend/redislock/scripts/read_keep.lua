-- Readers of RReadWriteLock. KEYS: name, hold and timeout of each. A reader's hold ends with its
-- timeout, though its field stays as long as others read.
return batch(function(at, field, ttl)
  local seen = ask('HMGET', KEYS[at], 'mode', field)
  if not seen or seen[1] ~= 'read' or not seen[2] or not lengthen(KEYS[at + 2], ttl) then
    return false
  end
  lengthen(KEYS[at + 1], ttl)
  lengthen(KEYS[at], ttl)
  return true
end, 2)
