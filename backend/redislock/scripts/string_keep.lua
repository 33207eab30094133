-- KEYS: name of each.
return batch(function(at, owner, ttl)
  local value = ask('GET', KEYS[at])
  return value and string.sub(value, 1, 37) == owner .. ' ' and lengthen(KEYS[at], ttl)
end)
