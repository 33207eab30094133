-- string_release_apart, as it is sent where messages are not sharded. Generated: go test -run ComposedScripts -args -update
-- ask lets a key that has become another type mean that the hold is gone.
local function ask(...)
  local r = redis.pcall(...)
  if type(r) == 'table' and r.err then
    if string.find(r.err, 'WRONGTYPE', 1, true) then
      return false
    end
    error(r.err)
  end
  return r
end
-- lost answers that nothing is held. Only a master knows that: the data of a replica, also of one
-- that was a master, may be old. A replica shows itself by refusing to write. This write
-- changes nothing: no stream has an entry 0-0.
local function lost(key)
  ask('XDEL', key, '0-0')
  return 0
end
-- Releases a lock whose slot moves. KEYS: name, since the server may have no other. ARGV: as string_release_alone. The answer is 2 if
-- the writer may have become a reader.
local value = ask('GET', KEYS[1])
if value and (string.sub(value, 1, 37) == ARGV[1] .. ' ' or value == ARGV[1]) then
  return redis.call('DEL', KEYS[1])
end
return value == 'shared read' and 2 or lost(KEYS[1])
