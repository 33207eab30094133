package sqlrow

import (
	"fmt"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
)

// Options of a Backend.
type Options struct {
	// Package is the name of the package for errors: "mysqllock".
	Package string

	// Name is Caps.Name.
	Name string

	// Bell makes the bell, which may call Wake and WakeAll of the backend. nil: waiters poll.
	Bell func(*Backend) Bell
}

// Backend keeps locks in rows of a table. Its methods are safe for concurrent use. It
// implements driver.Backend, driver.Waiter and driver.Inspector.
type Backend struct {
	dialect Dialect
	options Options
	bell    Bell

	closing chan struct{} // closed by Close
	once    sync.Once
	err     error // of Close
}

// New makes a backend of a table that exists. It asks the database nothing.
func New(d Dialect, o Options) *Backend {
	b := &Backend{dialect: d, options: o, closing: make(chan struct{})}
	if o.Bell != nil {
		b.bell = o.Bell(b)
	}
	return b
}

// Caps: all modes, fences, and lines on request.
func (b *Backend) Caps() driver.Caps {
	return driver.Caps{
		Name:      b.options.Name,
		Modes:     driver.AllModes,
		Fence:     true,
		Floor:     true,
		Downgrade: true,
		Line:      driver.OnRequest,
		SpanLife:  time.Millisecond,
		MinTTL:    claims.MinTTL,
		MaxTTL:    claims.MaxTTL,
	}
}

// Wake tells those who wait for k that it may be free. It does not block.
func (b *Backend) Wake(k Key) {}

// WakeAll is Wake for every lock, when news may have been missed.
func (b *Backend) WakeAll() {}

// Close ends the backend's goroutines, and closes the bell. Holds stay until they are
// released by another backend or their TTL has passed.
func (b *Backend) Close() error {
	b.once.Do(func() {
		close(b.closing)
		if b.bell != nil {
			b.err = b.wrap("close", "", b.bell.Close())
		}
	})
	return b.err
}

// wrap says what failed.
func (b *Backend) wrap(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %s %q: %w", b.options.Package, op, name, err)
}
