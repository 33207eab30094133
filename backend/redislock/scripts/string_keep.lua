-- KEYS: name of each. The first renewal writes the fence, which a plain acquire did not know.
return batch(function(at, owner, ttl, id)
  local value = ask('GET', KEYS[at])
  if not value or string.sub(value, 1, 37) ~= owner .. ' ' then
    return false
  end
  local kept = lengthen(KEYS[at], ttl) -- first: Redis without memory refuses SET unless the script has written
  local last = id ~= '' and string.find(value, ' -', 38, true)
  if last then
    call('SET', KEYS[at], string.sub(value, 1, last) .. id .. (string.sub(value, -1) == 'w' and 'w' or ''), 'KEEPTTL')
  end
  return kept
end, 3)
