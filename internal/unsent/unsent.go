// Package unsent recognizes failures that prove that a request was never sent.
package unsent

import (
	"errors"
	"net"

	"github.com/distlock/distlock/driver"
)

// Mark returns err, which matches driver.ErrUnsent if the cause is that no connection could be
// opened. The caller guarantees that no part of the request was sent before, or on another
// connection.
func Mark(err error) error {
	if op := (*net.OpError)(nil); errors.As(err, &op) && op.Op == "dial" {
		return driver.Unsent(err)
	}
	return err
}
