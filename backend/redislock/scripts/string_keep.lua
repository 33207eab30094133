-- KEYS: name of each. The first renewal writes the fence, which a plain acquire did not know.
return batch(function(at, owner, ttl, id)
  local value = ask('GET', KEYS[at])
  if not value or string.sub(value, 1, 37) ~= owner .. ' ' then
    return false
  end
  local last = id ~= '' and string.find(value, ' -', 38, true)
  if not last then
    return lengthen(KEYS[at], ttl)
  end
  local left = call('PTTL', KEYS[at])
  call('SET', KEYS[at], string.sub(value, 1, last) .. id .. string.match(value, 'w?$'), 'PX', math.max(ttl, left))
  return true
end, 3)
