// Package tick computes how a job that many hosts start at the same time is held, so that it runs once a tick although their
// clocks differ.
package tick

import (
	"time"

	"github.com/distlock/distlock/driver"
)

// most is the longest that a tick is held beyond its job: hosts whose clocks differ by more are few, and need a clock.
const most = 90 * time.Second

// Terms returns for how long a run of a job that is started every so often holds the lock at least, and its TTL.
//
// A host whose clock is behind must find the lock taken: the hold lasts for two thirds of the schedule, or 90 s. A host must
// find it free at its own next tick, also if the last renewal came just before the end of that: so the TTL is a quarter of
// the schedule at most. A hold that ends late ends that much sooner. Where holds end with a session, the TTL is all that is left of a host that died, and stays as
// it is.
func Terms(every, ttl time.Duration, caps driver.Caps) (minHold, of time.Duration) {
	minHold = min(every/3*2, most)
	if caps.Session {
		return minHold, ttl
	}
	minHold = min(minHold, max(0, every-every/10-caps.Late))
	return min(minHold, caps.Longest()), max(min(ttl, every/4), caps.MinTTL)
}
