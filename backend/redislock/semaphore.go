package redislock

import (
	"strconv"

	"github.com/distlock/distlock/driver"
)

// addCounted adds Redisson's RPermitExpirableSemaphore, which both layouts have.
//
// To Java a semaphore is made once (trySetPermits) and stays until it is deleted: a
// Java waiter on one that is gone waits for ever. So where Java takes part it stays.
// Elsewhere it has a TTL, that of its longest permit, and goes with the last one.
func addCounted(l *layout, fences string, stays bool) {
	l.recipes[driver.Counted] = &recipe{
		take:   compose(fences, "hold", "foreign", "publish", "permit", "permit_take"),
		keep:   compose(fences, "ask", "lost", "keep", "permit", "permit_keep"),
		drop:   compose("ask", "lost", "publish", "permit", "permit_drop"),
		writer: permitID,
		keys: func(name, owner string) []string {
			return []string{name, holdKey(name, owner), permitsKey(name)}
		},
		kept: 3,
		takeArgs: func(name string, r driver.Request) []string {
			return []string{permitsChannel(name), strconv.Itoa(r.Limit), bit(stays)}
		},
		dropArgs: func(string) []string { return []string{bit(stays)} },
		channel:  permitsChannel,
		wakes:    number,
		span:     1,
	}
}
