// Package unsent knows which failures prove that a request was never sent.
package unsent

import (
	"errors"
	"net"

	"github.com/distlock/distlock/driver"
)

// Mark returns err, and lets it match driver.ErrUnsent if it says that no connection could be
// made. Its caller vouches that nothing else was sent: neither on another connection, nor
// before.
func Mark(err error) error {
	if op := (*net.OpError)(nil); errors.As(err, &op) && op.Op == "dial" {
		return driver.Unsent(err)
	}
	return err
}
