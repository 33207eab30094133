// Package unsent recognizes failures that prove that a request was never sent.
package unsent

import (
	"crypto/tls"
	"errors"
	"net"

	"github.com/distlock/distlock/driver"
)

// Mark returns err, which matches driver.ErrUnsent if the cause is that no connection could be
// opened, or that the server's certificate is not trusted. The caller guarantees that no part of the request was sent before, or on another
// connection.
func Mark(err error) error {
	op := (*net.OpError)(nil)
	if errors.As(err, &op) && op.Op == "dial" || errors.As(err, new(*tls.CertificateVerificationError)) {
		return driver.Unsent(err)
	}
	return err
}
