-- There is a queue, or nothing was held.
queue, tickets = KEYS[2], KEYS[3]
if not held then
  return quit(ARGV[1], KEYS[1], ARGV[2])
end
freed(ARGV[2])
return 1
