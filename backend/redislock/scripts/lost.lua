-- lost answers that nothing is held. A replica does not know: what it has may be old, and
-- it lives on as one after it was a master. It shows by refusing to write, were it
-- nothing: no stream has an entry 0-0.
local function lost(key)
  ask('XDEL', key, '0-0')
  return 0
end
