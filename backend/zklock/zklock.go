package zklock

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/driver"
)

// Backend keeps locks in ZooKeeper. It is safe for concurrent use.
type Backend struct {
	opts       *options
	caps       driver.Caps
	persistent atomic.Bool // the servers know no containers

	life  context.Context // ends with Close
	stop  context.CancelFunc
	tasks sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	sessions map[time.Duration]*session // by the TTL of their holds
	places   map[string]*place          // by Owner
	watches  map[string]*watch          // by Owner
}

var (
	_ driver.Backend   = (*Backend)(nil)
	_ driver.Watcher   = (*Backend)(nil)
	_ driver.Inspector = (*Backend)(nil)
	_ driver.Revoker   = (*Backend)(nil)
)

// newBackend is for servers whose sessions last from least to most.
func newBackend(o *options, least, most time.Duration) *Backend {
	b := &Backend{
		opts: o, sessions: map[time.Duration]*session{}, places: map[string]*place{}, watches: map[string]*watch{},
		caps: driver.Caps{
			Name: o.name, Modes: driver.AllModes, Revocable: driver.AllModes,
			Fence: true, Session: true, Downgrade: true, Queueing: driver.QueueAlways,
			MinTTL: least / share, MaxTTL: most / share,
		},
	}
	b.life, b.stop = context.WithCancel(context.Background())
	return b
}

// Caps says what the backend can do. The bounds of a TTL are half of those that the
// servers put on a session.
func (b *Backend) Caps() driver.Caps { return b.caps }

// Close ends the sessions, and with them all holds and places in line.
func (b *Backend) Close() error {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.stop()
	b.tasks.Wait()
	return nil
}

func (b *Backend) isClosed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closed
}

// begin runs f in the background, unless the backend is closed.
func (b *Backend) begin(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		b.tasks.Go(f)
	}
}

// check refuses what can't be asked for.
func (b *Backend) check(h driver.Hold) error {
	switch {
	case b.isClosed():
		return driver.ErrClosed
	case !b.caps.Modes.Has(h.Mode):
		return fmt.Errorf("%w: mode %v", driver.ErrUnsupported, h.Mode)
	case h.Name == "":
		return fmt.Errorf("%w: a lock without a name", driver.ErrInvalid)
	}
	return nil
}
