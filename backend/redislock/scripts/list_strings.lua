-- Answers a 1 for each of these strings that is a held lock of distlock's, and a 0 for the others.
-- KEYS: the names, then the permits of each. One command reads all values, and
-- semaphores are looked for only if there are permits.
local call = redis.call
local t = call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local n = #KEYS / 2
local values = call('MGET', unpack(KEYS, 1, n))

local numbers, permits = {}, {}
for i = 1, n do
  if values[i] and string.find(values[i], '^-?%d+$') then
    numbers[#numbers + 1] = i
    permits[#permits + 1] = KEYS[n + i]
  end
end
local semaphores = {}
if #permits > 0 and call('EXISTS', unpack(permits)) > 0 then
  for _, i in ipairs(numbers) do
    local held = redis.pcall('ZCOUNT', KEYS[n + i], '(' .. now, '+inf')
    semaphores[i] = type(held) == 'number' and held > 0
  end
end

local answer = {}
for i = 1, n do
  local isLock = semaphores[i] or ARGV[1] == '1' and values[i] and isNote(values[i])
  answer[i] = isLock and '1' or '0'
end
return table.concat(answer)
