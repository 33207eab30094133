//go:build !linux

package sqlitelock

import "time"

// newClock is the wall clock where no steady clock is known that all processes
// share. Holds then outlive a reboot until their TTL has passed, and a jump of the
// clock moves the end of every hold.
func newClock() (clock, error) {
	return clock{boot: "wall", now: func() int64 { return time.Now().UnixNano() }}, nil
}
