// Package memlock keeps locks in the memory of one process: for tests, for programs
// that run alone, and to see what the other backends promise in its plainest form.
//
//	locks, err := distlock.Open(ctx, "mem:", nil)       // a store of its own
//	locks, err := distlock.Open(ctx, "mem:jobs", nil)   // shared by all who open mem:jobs in this process
//
// Or without a URL: [New] has a store of its own, and each [Store.Connect] is an
// independent connection to one store, as another process would have to a
// coordinator.
//
// A store is a map from names to holders and their line, in shards. It starts no
// goroutine and no timer: what has ended is found and dropped when the name is next
// looked at, by a clock read at that moment. So it is exact under testing/synctest.
//
// # What it promises
//
// Every mode, FIFO places in line on request, downgrade, pushed wake-ups, full
// inspection, holders that can be asked, and several locks in one step. Fences strictly
// increase per name for as long as the store lives. A name that nobody holds, waits for or
// watches takes no memory.
//
// Nothing survives the process, and nothing is shared with another one.
package memlock

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/driver"
)

var (
	_ driver.Backend   = (*Backend)(nil)
	_ driver.Watcher   = (*Backend)(nil)
	_ driver.Inspector = (*Backend)(nil)
	_ driver.Revoker   = (*Backend)(nil)
)

// Backend is one connection to a [Store]. It is safe for concurrent use.
type Backend struct {
	store  *Store
	closed atomic.Bool
}

// New makes a backend with a store of its own.
func New() *Backend { return NewStore().Connect() }

// Caps claims everything but a session.
func (b *Backend) Caps() driver.Caps {
	return driver.Caps{
		Name:      b.store.name,
		Modes:     driver.AllModes,
		Fence:     true,
		Floor:     true,
		Downgrade: true,
		Queueing:  driver.QueueOnRequest,
		Revocable: driver.AllModes,
		Poll:      time.Millisecond,
		MinTTL:    time.Millisecond,
	}
}

// Acquire makes one attempt. r.Meta is kept as it is: the caller does not change it
// afterwards.
func (b *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := b.usable(ctx); err != nil {
		return driver.Grant{}, err
	}
	if err := valid(&r); err != nil {
		return driver.Grant{}, err
	}
	sh := b.store.shard(r.Name)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := b.store.now()
	l := sh.open(r.Name, now)
	grant, err := l.acquire(&r, now)
	sh.settle(r.Name, l)
	return grant, err
}

// Renew makes each hold live for at least its TTL, or for exactly that with Shorten.
func (b *Backend) Renew(ctx context.Context, holds []driver.Hold) []error {
	errs := make([]error, len(holds))
	for i := range holds {
		errs[i] = b.renew(ctx, &holds[i])
	}
	return errs
}

func (b *Backend) renew(ctx context.Context, h *driver.Hold) error {
	if err := b.usable(ctx); err != nil {
		return err
	}
	if err := validTTL(h.TTL); err != nil {
		return err
	}
	if h.Floor > maxFence {
		return fmt.Errorf("%w: floor %d is beyond %d", driver.ErrInvalid, h.Floor, uint64(maxFence))
	}
	return b.change(h.Name, func(l *lock, now time.Duration) error { return l.renew(h, now) })
}

// Release ends the hold of h.Owner or its place in line.
func (b *Backend) Release(ctx context.Context, h driver.Hold) error {
	if err := b.usable(ctx); err != nil {
		return err
	}
	return b.change(h.Name, func(l *lock, now time.Duration) error { return l.release(h.Name, h.Owner, now) })
}

// change runs f on a lock that somebody may hold; ErrLost if nobody can.
func (b *Backend) change(name string, f func(*lock, time.Duration) error) error {
	sh := b.store.shard(name)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	l := sh.locks[name]
	if l == nil {
		return lost(name)
	}
	now := b.store.now()
	l.sweep(now)
	err := f(l, now)
	sh.settle(name, l)
	return err
}

// Close ends the watches of this connection. Its holds and places end with their
// TTL, as those of a process that went away.
func (b *Backend) Close() error {
	if !b.closed.Swap(true) {
		b.store.dropWatches(b)
	}
	return nil
}

func (b *Backend) usable(ctx context.Context) error {
	if b.closed.Load() {
		return fmt.Errorf("memlock: %w", driver.ErrClosed)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("memlock: %w", err)
	}
	return nil
}

func valid(r *driver.Request) error {
	switch {
	case r.Name == "" || r.Owner == "":
		return fmt.Errorf("%w: a request needs a name and an owner", driver.ErrInvalid)
	case !driver.AllModes.Has(r.Mode) || r.Mode == 0:
		return fmt.Errorf("%w: mode %v", driver.ErrUnsupported, r.Mode)
	case r.Mode == driver.Counted && r.Limit < 1:
		return fmt.Errorf("%w: limit %d is not positive", driver.ErrInvalid, r.Limit)
	}
	return validTTL(r.TTL)
}

// validTTL refuses what has no room in the store's instants.
func validTTL(ttl time.Duration) error {
	const most = 2 * driver.MaxTTL // combinators add to what the core asks for
	if ttl <= 0 || ttl > most {
		return fmt.Errorf("%w: TTL %v; want more than 0 and at most %v", driver.ErrInvalid, ttl, most)
	}
	return nil
}

func lost(name string) error {
	return fmt.Errorf("memlock: %s: %w", driver.Quote(name), driver.ErrLost)
}
