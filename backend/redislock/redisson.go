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
	}
	l.recipes[driver.Exclusive] = &recipe{
		take:   compose("fence_token", "hold", "queue", "hash_take"),
		keep:   compose("fence_token", "ask", "keep", "hash_keep"),
		drop:   compose("ask", "publish", "queue", "hash_drop"),
		writer: field,
		keys: func(name, owner string) []string {
			return []string{name, holdKey(name, owner), queueKey(name), timeoutsKey(name)}
		},
		kept:    2,
		channel: lockChannel,
		wakes:   one,
		span:    1,
	}
	addReadWrite(l, "fence_token")
	addCounted(l, "fence_token", true)
	return l
}
