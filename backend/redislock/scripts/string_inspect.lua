-- What is known of one name. KEYS: name, holders, notes, queue, places, fence counter.
-- Answer: type; clock in µs; ms left; value; {owner, ms left, note}…; {place, ms left}….
local call = redis.call
local t = call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local kind = call('TYPE', KEYS[1]).ok
local value = kind == 'string' and call('GET', KEYS[1]) or ''
local left = call('PTTL', KEYS[1])
local holders, waiters = {}, {}

if isShared(value) and call('TYPE', KEYS[2]).ok == 'zset' then
  local found = call('ZRANGEBYSCORE', KEYS[2], '(' .. now, '+inf', 'WITHSCORES')
  for i = 1, #found, 2 do
    holders[#holders + 1] = {found[i], tonumber(found[i + 1]) - now, found[i] .. ' ' .. (call('HGET', KEYS[3], found[i]) or '')}
  end
end
if call('TYPE', KEYS[4]).ok == 'list' then
  for _, who in ipairs(call('LRANGE', KEYS[4], 0, -1)) do
    local left = tonumber(call('ZSCORE', KEYS[5], who) or now) - now
    if left >= 0 then
      waiters[#waiters + 1] = {who, left > 0 and left or -1}
    end
  end
end
return {kind, t[1] * 1000000 + t[2], left, drawn(value, KEYS[6], now, left), holders, waiters}
