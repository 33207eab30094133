package redislock

import "github.com/distlock/distlock/driver"

// addReadWrite adds Redisson's RReadWriteLock, which both layouts have.
func addReadWrite(l *layout, fences string) {
	write := &recipe{
		take:   compose(fences, "hold", "foreign", "write_take"),
		keep:   compose(fences, "ask", "lost", "keep", "hash_keep"),
		drop:   compose("ask", "lost", "publish", "readers", "rw_drop"),
		writer: field,
		keeper: func(owner string) string { return field(owner) + ":write" },
		keys: func(name, owner string) []string {
			return []string{name, holdKey(name, owner), readerKey(name, owner)}
		},
		kept:     2,
		dropArgs: func(name string) []string { return []string{tagged(name)} },
		channel:  rwChannel,
		wakes:    readers,
		span:     l.span,
	}
	read := *write
	read.take = compose(fences, "hold", "foreign", "publish", "read_take")
	read.keep = compose(fences, "ask", "lost", "keep", "readers", "read_keep")
	read.keeper, read.kept, read.span = nil, 3, 1
	read.takeArgs = func(name string, _ driver.Request) []string { return []string{rwChannel(name)} }
	l.recipes[driver.Write], l.recipes[driver.Read] = write, &read
}
