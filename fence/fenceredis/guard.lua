-- KEYS[1]: where the greatest fence is stored; ARGV[1]: the fence that is presented.
-- Fences are compared as text: they have more digits than a number in Lua can hold.
local guard, fence = table.remove(KEYS, 1), table.remove(ARGV, 1)
local function body()
-- BODY
end
local seen = redis.call('GET', guard)
if seen and not seen:match('^[1-9]%d*$') then
  return {'stale', seen}
end
if seen and (#seen > #fence or #seen == #fence and seen > fence) then
  return {'stale', seen}
end
if seen ~= fence then
  redis.call('SET', guard, fence)
end
local answer = body()
if type(answer) == 'table' and answer.err then
  return answer
end
return {'in', answer}
