-- sweep drops those who stand in line but have gone, as every fair request does: else
-- a crowd that died would keep everybody out for ever.
local function sweep()
  local t = redis.call('TIME')
  local now = t[1] * 1000 + math.floor(t[2] / 1000)
  while true do
    local head = redis.call('LINDEX', KEYS[3], 0)
    local ends = head and redis.call('ZSCORE', KEYS[4], head)
    if not ends then
      return nil
    end
    if tonumber(ends) > now then
      return tonumber(ends) - now
    end
    redis.call('ZREM', KEYS[4], head)
    redis.call('LPOP', KEYS[3])
  end
end
