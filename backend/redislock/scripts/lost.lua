-- lost answers that nothing is held. Only a master knows that: the data of a replica, also of one
-- that was a master, may be old. A replica shows itself by refusing to write. This write
-- changes nothing: no stream has an entry 0-0.
local function lost(key)
  ask('XDEL', key, '0-0')
  return 0
end
