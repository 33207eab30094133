-- drawn returns a value with its fence, if plain commands wrote the value before they knew that: what they drew is the entry
-- with the end of the Owner, in or soon after the millisecond in which the key began its TTL. now was read before left.
local function drawn(value, counter, now, left)
  local at = string.find(value, ' -', 38, true)
  local ttl = at and string.match(value, '^%d+', at + 2)
  local entries = ttl and redis.pcall('XRANGE', counter, string.format('%.0f', math.max(0, now + left - ttl - 2)), '+', 'COUNT', 256)
  for _, entry in ipairs(entries or {}) do
    if entry[2][2] == string.sub(value, 29, 36) then
      return string.sub(value, 1, at) .. entry[1] .. (string.sub(value, -1) == 'w' and 'w' or '')
    end
  end
  return value
end
