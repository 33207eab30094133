package redislock

import "github.com/distlock/distlock/driver"

// redissonLayout writes an exclusive lock as Redisson's RLock and RFencedLock do.
//
// Hold counts are set to 1 and never counted up: the same Owner asked again is the same
// hold, also when the first answer was lost on its way.
func redissonLayout() *layout {
	l := &layout{
		counter: func(prefix, name string) string { return tokenKey(prefix + name) },
		span:    1,
		line:    javaLine, linePrefix: javaLinePrefix,
	}
	l.recipes[driver.Exclusive] = &recipe{
		take:   compose("fence_token", "hold", "foreign", "line", "line_stand", "hash_take"),
		keep:   compose("fence_token", "ask", "lost", "keep", "hash_keep"),
		drop:   compose("ask", "lost", "publish", "line", "line_drop", "hash_drop"),
		writer: field,
		keys: func(name, owner string) []string {
			return append([]string{name, holdKey(name, owner)}, javaLine(name)...)
		},
		kept:     2,
		takeArgs: func(_ string, r driver.Request) []string { return []string{bit(r.Queue)} },
		channel:  lockChannel,
		wakes:    one,
		span:     1,
	}
	addReadWrite(l, "fence_token")
	addCounted(l, "fence_token", true)
	return l
}
