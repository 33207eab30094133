-- redisson_list_strings, as it is sent where messages are not sharded. Generated: go test -run ComposedScripts -args -update
-- Answers a 1 for each of these strings that is a semaphore of which permits are held, and a 0 for the others.
-- KEYS: the names, then the permits of each. One command reads all values, and
-- semaphores are looked for only if there are permits.
local call = redis.call
local t = call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local n = #KEYS / 2
local some = call('EXISTS', unpack(KEYS, n + 1)) > 0
local answer = {}
for i, value in ipairs(call('MGET', unpack(KEYS, 1, n))) do
  local held = some and value and string.find(value, '^-?%d+$') and redis.pcall('ZCOUNT', KEYS[n + i], '(' .. now, '+inf')
  answer[i] = type(held) == 'number' and held > 0 and '1' or '0'
end
return table.concat(answer)
