-- Answers a 1 for each of these hashes that is a held lock, and a 0 for the others. KEYS: the names.
local answer = {}
for i, key in ipairs(KEYS) do
  local mode = redis.pcall('HGET', key, 'mode')
  local isLock
  if type(mode) == 'string' then
    isLock = isMode(mode, redis.call('PTTL', key))
  elseif not mode then
    isLock = isHeld(key)
  end
  answer[i] = isLock and '1' or '0'
end
return table.concat(answer)
