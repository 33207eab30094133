-- Which of these keys are locks that somebody holds. KEYS: name and permits of each.
-- Answer: a 1 or 0 for each name.
local call = redis.call
local t = call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local uuid = '^' .. string.rep('%x', 8) .. string.rep('%-' .. string.rep('%x', 4), 3) .. '%-' .. string.rep('%x', 12)

local function isLock(name, permits)
  local kind = call('TYPE', name).ok
  if kind == 'string' then
    if call('TYPE', permits).ok == 'zset' then
      return call('ZCOUNT', permits, '(' .. now, '+inf') > 0
    end
    return string.find(call('GETRANGE', name, 0, 36), uuid .. ' $')
  end
  if kind ~= 'hash' then
    return false
  end
  local mode = call('HGET', name, 'mode')
  if mode then
    return mode == 'read' or mode == 'write'
  end
  return call('HLEN', name) == 1 and string.find(call('HKEYS', name)[1], uuid .. ':%-?%d+$')
end

local answer = {}
for i = 1, #KEYS, 2 do
  answer[#answer + 1] = isLock(KEYS[i], KEYS[i + 1]) and '1' or '0'
end
return table.concat(answer)
