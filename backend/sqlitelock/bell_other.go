//go:build !linux

package sqlitelock

import "github.com/distlock/distlock/driver"

// bell rings nowhere: waiters poll.
type bell struct{}

func newBell(string) (*bell, error)               { return &bell{}, nil }
func (*bell) ring([]string, int64)                {}
func (*bell) listen(string) (driver.Watch, error) { return driver.Watch{}, driver.ErrSkip }
func (*bell) close() error                        { return nil }
