-- Releases a lock whose slot moves. KEYS: name, since the server may have no other. ARGV: as string_release_alone. The answer is 2 if
-- the writer may have become a reader.
local value = ask('GET', KEYS[1])
if value and (string.sub(value, 1, 37) == ARGV[1] .. ' ' or value == ARGV[1]) then
  return redis.call('DEL', KEYS[1])
end
return value == 'shared read' and 2 or lost(KEYS[1])
