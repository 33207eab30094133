package faultproxy

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
)

// Refuse closes all connections and refuses new ones from now on.
func (p *Proxy) Refuse() {
	p.l.Close()
	p.keepPort()
	p.Cut()
}

// keepPort makes a connection from the proxy's port, so that no other server listens there. It
// fails while the port still has connections, which have the same effect.
func (p *Proxy) keepPort() {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return
	}
	defer other.Close()
	from := net.Dialer{LocalAddr: p.l.Addr()}
	if conn, err := from.Dial("tcp", other.Addr().String()); err == nil {
		p.tb.Cleanup(func() { conn.Close() })
	}
}

// AwaitUnsent makes attempts through a proxy that refuses connections until one fails with
// driver.ErrUnsent. The first attempts may meet connections that were just lost.
func AwaitUnsent(tb testing.TB, b driver.Backend, request func() driver.Request) {
	tb.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(tb.Context(), 2*time.Second)
		_, err := b.Acquire(ctx, request())
		cancel()
		switch {
		case err == nil, errors.Is(err, driver.ErrHeld), errors.Is(err, driver.ErrLost), driver.Final(err):
			tb.Fatalf("acquire without a server: %v", err)
		case errors.Is(err, driver.ErrUnsent):
			return
		case time.Now().After(end):
			tb.Fatalf("the last attempt without a server: %v", err)
		}
	}
}
