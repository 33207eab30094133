// Package memlock keeps locks in the memory of one process: for tests, for programs that run alone,
// and as the simplest example of a backend.
//
//	locks, err := distlock.Open(ctx, "mem:", nil)       // a store of its own
//	locks, err := distlock.Open(ctx, "mem:jobs", nil)   // shared by all clients of mem:jobs in this process
//
// [New] makes a store of its own without a URL. Each [Store.Connect] is an independent
// connection to one store, like the connection of another process to a coordinator.
//
// A store is a sharded map from names to holders and their queue. It has no goroutines and
// no timers: expired holds are dropped when their name is next used. So it is exact under
// testing/synctest.
//
// # What it promises
//
// All modes, a FIFO queue on request, downgrades, pushed wake-ups, full inspection and
// revocation. Fences strictly increase per name for as long as the store lives. A name
// without holders, waiters and watches takes no memory.
//
// Nothing survives the process, and nothing is shared with another one.
package memlock

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
)

func init() {
	driver.Register("mem", func(_ context.Context, u *url.URL) (driver.Backend, error) { return openURL(u) })
}

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

// Connect makes an independent connection to s.
func (s *Store) Connect() *Backend { return &Backend{store: s} }

func openURL(u *url.URL) (*Backend, error) {
	if err := driver.NewParams(u).Err(); err != nil {
		return nil, err
	}
	if u.Host != "" || u.Path != "" || u.User != nil || u.Fragment != "" {
		return nil, fmt.Errorf("%w: URL: want mem: for a store of its own, or mem:NAME for one shared in this process", driver.ErrInvalid)
	}
	name, err := url.PathUnescape(u.Opaque)
	if err != nil {
		return nil, fmt.Errorf("%w: URL: %w", driver.ErrInvalid, err)
	}
	if name == "" {
		return New(), nil
	}
	return namedStore(name).Connect(), nil
}

// Caps returns all capabilities except those for sessions.
func (b *Backend) Caps() driver.Caps {
	return driver.Caps{
		Name:      b.store.name,
		Modes:     driver.AllModes,
		Fence:     true,
		Floor:     true,
		Downgrade: true,
		Detached:  true,
		Queueing:  driver.QueueOnRequest,
		Revocable: driver.AllModes,
		Poll:      time.Millisecond,
		MinTTL:    time.Millisecond,
	}
}

// Acquire makes one attempt.
func (b *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := b.usable(ctx); err != nil {
		return driver.Grant{}, err
	}
	if err := r.Validate(b.Caps()); err != nil {
		return driver.Grant{}, err
	}
	sh := b.store.shard(r.Name)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := b.store.now()
	l := sh.open(r.Name, now)
	grant, err := l.acquire(&r, now)
	sh.forgetIdle(r.Name, l)
	return grant, err
}

// Renew makes each hold live for at least its TTL.
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
	if err := h.ValidateRenewal(); err != nil {
		return err
	}
	if h.Floor > maxFence {
		return fmt.Errorf("%w: floor %d: want at most %d", driver.ErrInvalid, h.Floor, uint64(maxFence))
	}
	return b.update(h.Name, func(l *lockEntry, now int64) error { return l.renew(h, now) })
}

// Release ends the hold of h.Owner or its place in the queue.
func (b *Backend) Release(ctx context.Context, h driver.Hold) error {
	if err := b.usable(ctx); err != nil {
		return err
	}
	return b.update(h.Name, func(l *lockEntry, _ int64) error { return l.release(h.Name, h.Owner) })
}

// update calls f with the state of name. It returns ErrLost if the store has none.
func (b *Backend) update(name string, f func(*lockEntry, int64) error) error {
	sh := b.store.shard(name)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	l := sh.locks[name]
	if l == nil {
		return lost(name)
	}
	now := b.store.now()
	l.Expire(now)
	err := f(l, now)
	sh.forgetIdle(name, l)
	return err
}

// Watch signals each release and downgrade that lets r in. A waiter in the queue is
// signalled when its turn has come.
func (b *Backend) Watch(ctx context.Context, r driver.Request) (driver.Watch, error) {
	w := &watcher{closed: &b.closed, request: r, ready: wait.NewSignal()}
	sh := b.store.shard(r.Name)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	// Under the mutex: either Close drops this watcher, or it is noticed here.
	if err := b.usable(ctx); err != nil {
		return driver.Watch{}, err
	}
	l := sh.open(r.Name, b.store.now())
	l.watchers = append(l.watchers, w)
	return driver.Watch{Ready: w.ready, Close: sync.OnceFunc(func() { sh.removeWatcher(r.Name, w) })}, nil
}

// Revoke requests the lock from h.Owner, once.
func (b *Backend) Revoke(ctx context.Context, h driver.Hold) error {
	if err := b.usable(ctx); err != nil {
		return err
	}
	var onRevoke func()
	err := b.update(h.Name, func(l *lockEntry, _ int64) (err error) {
		onRevoke, err = l.revoke(h)
		return err
	})
	if onRevoke != nil {
		onRevoke()
	}
	return err
}

// Close ends the watches of this connection. Its holds and its places in the queue end
// with their TTL, as after the death of a process.
func (b *Backend) Close() error {
	if !b.closed.Swap(true) {
		b.store.removeClosedWatchers()
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

// Inspect returns the holders of name and its queue.
func (b *Backend) Inspect(ctx context.Context, name string) (driver.Info, error) {
	info := driver.Info{Name: name}
	if err := b.usable(ctx); err != nil {
		return info, err
	}
	_ = b.update(name, func(l *lockEntry, now int64) error { // a name without an entry is free
		info = l.Info(name, now)
		return nil
	})
	return info, nil
}

// List yields the names that have holders or waiters. It may miss names that change
// meanwhile: it looks at one shard after the other.
func (b *Backend) List(ctx context.Context, prefix string, yield func(name string) bool) error {
	for i := range b.store.shards {
		if err := b.usable(ctx); err != nil {
			return err
		}
		for _, name := range b.store.shards[i].names(prefix, b.store.now()) {
			if !yield(name) {
				return nil
			}
		}
	}
	return b.usable(ctx)
}

func (sh *shard) names(prefix string, now int64) []string {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	var names []string
	for name, l := range sh.locks {
		l.Expire(now)
		if len(l.Claims) > 0 && strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
		sh.forgetIdle(name, l)
	}
	return names
}
