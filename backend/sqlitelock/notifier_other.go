//go:build !linux

package sqlitelock

import (
	"time"

	"github.com/distlock/distlock/driver"
)

// newClock returns the wall clock: no steady clock is known that all processes share. So
// holds survive a reboot until their TTL has passed, and a jump of the clock moves their ends.
func newClock() (clock, error) {
	return clock{boot: "wall", now: func() int64 { return time.Now().UnixNano() }}, nil
}

// checkDisk accepts all directories: it can't tell network file systems apart.
func checkDisk(string) error { return nil }

// notifier does nothing here: waiters poll.
type notifier struct{}

func newNotifier(string) (*notifier, error) { return &notifier{}, nil }
func (*notifier) notify([]string, int64)    {}
func (*notifier) close() error              { return nil }

func (*notifier) watch(string, func()) (stop func(), err error) { return nil, driver.ErrSkip }
