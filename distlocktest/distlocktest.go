// Package distlocktest provides locks for tests of code that uses locks. They are in memory. A test can
// hold them as another client, take them away, or cut off their backend.
//
//	fake := distlocktest.New(t)
//	shop := NewShop(fake.Client)          // your code, which takes *distlock.Client or a *distlock.Mutex of it
//
//	release := fake.Hold("order:555")     // Lock waits, TryLock returns ErrHeld
//	release()
//	fake.Lose("order:555")                // the lease's context ends with cause ErrLost
//	fake.Down()                           // calls return ErrUnavailable, waits go on, leases are lost at their deadline
//	fake.Up()
//
// The client is a real one with a real backend: fences, hand-off and errors are as in production. Under
// testing/synctest deadlines pass in no time.
package distlocktest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
)

// Fake is a client and the means to disturb it. It is safe for concurrent use.
type Fake struct {
	// Client is for the code under test.
	Client *distlock.Client

	tb      testing.TB
	store   *memlock.Store
	backend *backend
}

// New returns a Fake whose client has default options and a memory backend of its own. The client
// is closed when the test ends.
func New(tb testing.TB) *Fake { return NewWith(tb, nil) }

// NewWith is New with options.
func NewWith(tb testing.TB, opts *distlock.Options) *Fake {
	tb.Helper()
	store := memlock.NewStore()
	b := &backend{Backend: store.Connect(), holds: map[ownerHold]clientHold{}}
	c, err := distlock.New(b, b.observe(opts))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := c.Close(); err != nil && !b.down.Load() {
			tb.Errorf("distlocktest: %v", err)
		}
	})
	return &Fake{Client: c, tb: tb, store: store, backend: b}
}

// Hold holds a mutex as another client until release is called or the lock is lost. The test fails if the lock
// is held already.
func (f *Fake) Hold(name string) (release func()) {
	f.tb.Helper()
	other := f.store.Connect()
	h := driver.Hold{Name: name, Owner: driver.NewOwner(), Mode: driver.Exclusive, TTL: driver.MaxTTL}
	meta := map[string]string{"program": "another program"}
	if _, err := other.Acquire(context.Background(), driver.Request{Hold: h, Fences: 1, Meta: meta}); err != nil {
		f.tb.Fatalf("distlocktest: %q can't be held by another client: %v", name, err)
	}
	return sync.OnceFunc(func() {
		if err := other.Release(context.Background(), h); err != nil && !errors.Is(err, driver.ErrLost) {
			f.tb.Errorf("distlocktest: %q can't be released by the other client: %v", name, err)
		}
	})
}

// Lose releases a lock of all its holders, as an operator might. Their leases are lost when Lose
// returns; one that was attached is lost at its next renewal. The test fails if the lock is not held.
func (f *Fake) Lose(name string) {
	f.tb.Helper()
	admin := f.store.Connect()
	info, err := admin.Inspect(context.Background(), name)
	if err != nil || len(info.Holders) == 0 {
		f.tb.Fatalf("distlocktest: %q can't be lost, since it is not held", name)
	}
	for _, h := range info.Holders {
		if err := admin.Release(context.Background(), driver.Hold{Name: name, Owner: h.Owner, Mode: h.Mode}); err != nil {
			f.tb.Errorf("distlocktest: %q: %v", name, err)
		}
		f.backend.lose(ownerHold{name, h.Owner})
	}
}

// Down cuts the client off from its backend, until Up. Its leases are lost at their deadlines.
func (f *Fake) Down() { f.backend.down.Store(true) }

// Up reconnects the client.
func (f *Fake) Up() { f.backend.down.Store(false) }

// ownerHold identifies an Owner's hold on a lock.
type ownerHold struct{ name, owner string }

// backend is a memory backend that can be cut off.
type backend struct {
	*memlock.Backend
	down atomic.Bool

	mu    sync.Mutex
	holds map[ownerHold]clientHold
}

// clientHold is a hold of the client.
type clientHold struct {
	lose  func()        // notifies the client that it is lost
	ended chan struct{} // closed once its leases have ended

	unleased bool // its leases have ended without a loss
}

var errDown = errors.New("distlocktest: the backend is down")

// patience is how long Lose waits for the end of a lease.
const patience = 10 * time.Second

// observe returns opts with an Observer that notices the end of lost holds.
func (b *backend) observe(opts *distlock.Options) *distlock.Options {
	var o distlock.Options
	if opts != nil {
		o = *opts
	}
	o.Observer = distlock.Observers(o.Observer, &distlock.Observer{
		Lost:      func(e distlock.Event) { b.end(ownerHold{e.Name, e.Owner}) },
		Released:  func(e distlock.Event) { b.leased(ownerHold{e.Name, e.Owner}, false) },
		HandedOff: func(e distlock.Event) { b.leased(ownerHold{e.Name, e.Owner}, true) },
	})
	return &o
}

// leased records whether a hold has a lease: one that MinHold keeps, or that was detached, has none.
func (b *backend) leased(h ownerHold, leased bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if hold, ok := b.holds[h]; ok {
		hold.unleased = !leased
		b.holds[h] = hold
	}
}

// lose notifies the holder of a loss, and waits until its leases have ended.
func (b *backend) lose(h ownerHold) {
	b.mu.Lock()
	hold, ok := b.holds[h]
	b.mu.Unlock()
	if !ok {
		return
	}
	hold.lose()
	if hold.unleased {
		b.end(h)
		return
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-hold.ended:
	case <-timer.C:
	}
}

// end forgets a hold.
func (b *backend) end(h ownerHold) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if hold, ok := b.holds[h]; ok {
		close(hold.ended)
		delete(b.holds, h)
	}
}

// Acquire records the holder's OnLost.
func (b *backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if b.down.Load() {
		return driver.Grant{}, errDown
	}
	g, err := b.Backend.Acquire(ctx, r)
	if err == nil && r.OnLost != nil {
		b.record(ownerHold{r.Name, r.Owner}, r.OnLost)
	}
	return g, err
}

func (b *backend) record(h ownerHold, lose func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	hold, ok := b.holds[h] // a grant to the same Owner
	if !ok {
		hold.ended = make(chan struct{})
	}
	hold.lose = lose
	b.holds[h] = hold
}

// Renew fails while the backend is down.
func (b *backend) Renew(ctx context.Context, holds []driver.Hold) []error {
	if !b.down.Load() {
		return b.Backend.Renew(ctx, holds)
	}
	return slices.Repeat([]error{errDown}, len(holds))
}

// Release forgets the holder's OnLost.
func (b *backend) Release(ctx context.Context, h driver.Hold) error {
	if b.down.Load() {
		return errDown
	}
	b.end(ownerHold{h.Name, h.Owner})
	return b.Backend.Release(ctx, h)
}

// Watch fails while the backend is down.
func (b *backend) Watch(ctx context.Context, r driver.Request) (driver.Watch, error) {
	if b.down.Load() {
		return driver.Watch{}, errDown
	}
	return b.Backend.Watch(ctx, r)
}

// Inspect fails while the backend is down.
func (b *backend) Inspect(ctx context.Context, name string) (driver.Info, error) {
	if b.down.Load() {
		return driver.Info{}, errDown
	}
	return b.Backend.Inspect(ctx, name)
}

// List fails while the backend is down.
func (b *backend) List(ctx context.Context, prefix string, yield func(string) bool) error {
	if b.down.Load() {
		return errDown
	}
	return b.Backend.List(ctx, prefix, yield)
}

// Revoke fails while the backend is down.
func (b *backend) Revoke(ctx context.Context, h driver.Hold) error {
	if b.down.Load() {
		return errDown
	}
	return b.Backend.Revoke(ctx, h)
}
