-- KEYS: name of each. The first renewal writes the fence, which a plain acquire did not know. If it is not known now either,
-- what stands there still says when the hold began.
return batch(function(at, owner, ttl, id)
  local value = ask('GET', KEYS[at])
  if not value or string.sub(value, 1, 37) ~= owner .. ' ' then
    return false
  end
  local last = string.find(value, ' -', 38, true)
  local left = last and id == '' and call('PTTL', KEYS[at])
  local kept = lengthen(KEYS[at], ttl) -- first: Redis without memory refuses SET unless the script has written
  if last then
    if left then
      id = string.format('-%.0f', string.match(value, '^%d+', last + 2) + call('PTTL', KEYS[at]) - left)
    end
    call('SET', KEYS[at], string.sub(value, 1, last) .. id .. (string.sub(value, -1) == 'w' and 'w' or ''), 'KEEPTTL')
  end
  return kept
end, 3)
