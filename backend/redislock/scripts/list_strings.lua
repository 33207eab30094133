-- Answers a 1 for each of these strings that is a held lock of distlock's, and a 0 for the others.
-- KEYS: the names.
local answer = {}
for i, value in ipairs(redis.call('MGET', unpack(KEYS))) do
  answer[i] = value and (isNote(value) or isShared(value)) and '1' or '0'
end
return table.concat(answer)
