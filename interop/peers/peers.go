// Package peers lets distlock and other libraries that Go can call share locks in tests: peers of
// both kinds take turns and wait for each other.
package peers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/exclusion"
	"github.com/distlock/distlock/internal/wait"
)

// Patience is how long tests wait for an event.
const Patience = 2 * time.Minute

// prompt is how soon a waiter that was woken has the lock. Leases and sessions last longer.
const prompt = 25 * time.Second

// Peer is one user of locks, of one kind.
type Peer interface {
	// Lock waits as its kind does. Names are distlock's.
	Lock(ctx context.Context, name string) (Held, error)
}

// Held is a lock that a peer holds.
type Held interface {
	Unlock(ctx context.Context) error
	Fence() uint64 // 0: none
}

// Tryer is a peer that can make one attempt. It returns nil without an error if the lock is held.
type Tryer interface {
	Peer
	Try(ctx context.Context, name string) (Held, error)
}

// Distlock is distlock's peer.
type Distlock struct {
	*distlock.Client
	Options []distlock.LockOption
}

// NewDistlock makes a client, which is closed at the end of the test.
func NewDistlock(tb testing.TB, b driver.Backend, opts *distlock.Options) Distlock {
	tb.Helper()
	c, err := distlock.New(b, opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.Close() })
	return Distlock{Client: c}
}

// With returns a peer of the same client, whose locks have these options.
func (d Distlock) With(options ...distlock.LockOption) Distlock {
	d.Options = options
	return d
}

// Lock locks a Mutex.
func (d Distlock) Lock(ctx context.Context, name string) (Held, error) {
	l, err := d.Mutex(name, d.Options...).Lock(ctx)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// Try tries to lock a Mutex.
func (d Distlock) Try(ctx context.Context, name string) (Held, error) {
	l, err := d.Mutex(name, d.Options...).TryLock(ctx)
	switch {
	case errors.Is(err, distlock.ErrHeld):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return l, nil
}

// Take waits for a lock.
func Take(tb testing.TB, p Peer, name string) Held {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	h, err := p.Lock(ctx, name)
	if err != nil {
		tb.Fatal(err)
	}
	return h
}

// Give releases a lock.
func Give(tb testing.TB, h Held) {
	tb.Helper()
	if err := h.Unlock(context.Background()); err != nil {
		tb.Fatalf("unlock: %v", err)
	}
}

// Eventually waits until is returns true.
func Eventually(tb testing.TB, complaint string, is func() bool) {
	tb.Helper()
	for end := time.Now().Add(Patience); !is(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatal(complaint)
		}
	}
}

// Turns lets each peer hold one lock for a number of turns, and checks that no two hold it at
// once. The keys of peers are their kinds.
func Turns(tb testing.TB, name string, turns int, peers map[string][]Peer) {
	tb.Helper()
	c, all := exclusion.New(), 0
	var wg wait.Group
	for kind, ofKind := range peers {
		for _, p := range ofKind {
			all += turns
			wg.Go(func() {
				if err := takeTurns(context.Background(), c, p, kind, name, turns); err != nil {
					tb.Errorf("%s: %v", kind, err)
				}
			})
		}
	}
	wg.Wait()
	c.Judge(tb, all)
	if n := c.Turns(name); n < 2 {
		tb.Errorf("the lock passed from one kind to another %d times, want 2 or more", n)
	}
}

func takeTurns(ctx context.Context, c *exclusion.Checker, p Peer, kind, name string, turns int) error {
	for range turns {
		h, err := p.Lock(ctx, name)
		if err != nil {
			return err
		}
		c.Visit(kind, name, h.Fence(), 50*time.Microsecond)
		if err := h.Unlock(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Crowd lets 16 goroutines take turns through one peer, each with the lock for 2 ms. It returns the
// greatest number of holders at once.
func Crowd(tb testing.TB, p Peer, name string) (most int64) {
	tb.Helper()
	const goroutines, turns = 16, 10
	var inside, top atomic.Int64
	var wg wait.Group
	for range goroutines {
		wg.Go(func() {
			for range turns {
				h, err := p.Lock(context.Background(), name)
				if err != nil {
					tb.Error(err)
					return
				}
				Raise(&top, inside.Add(1))
				time.Sleep(2 * time.Millisecond)
				inside.Add(-1)
				if err := h.Unlock(context.Background()); err != nil {
					tb.Error(err)
				}
			}
		})
	}
	wg.Wait()
	return top.Load()
}

// Raise sets most to n if n is greater.
func Raise(most *atomic.Int64, n int64) {
	for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
	}
}

// Waiter is a peer that waits for a lock.
type Waiter struct{ Got chan Grant }

// Grant is the result of a wait.
type Grant struct {
	Held
	At  time.Time
	Err error
}

// StartWaiter makes a peer wait for a lock.
func StartWaiter(tb testing.TB, p Peer, name string) Waiter {
	w := Waiter{make(chan Grant, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	tb.Cleanup(cancel)
	go func() {
		h, err := p.Lock(ctx, name)
		w.Got <- Grant{h, time.Now(), err}
	}()
	return w
}

// Granted waits until the waiter has the lock.
func (w Waiter) Granted(tb testing.TB) Grant {
	tb.Helper()
	select {
	case g := <-w.Got:
		if g.Err != nil {
			tb.Fatalf("a waiter did not get the lock: %v", g.Err)
		}
		return g
	case <-time.After(Patience):
		tb.Fatal("a waiter never got the lock")
	}
	panic("not reached")
}

// Waits checks that the waiter still waits.
func (w Waiter) Waits(tb testing.TB) {
	tb.Helper()
	select {
	case g := <-w.Got:
		tb.Fatalf("a waiter got a lock that another peer holds (%v)", g.Err)
	default:
	}
}

// WakeUps makes one peer wait for another, again and again, and checks that it is woken promptly.
// queued returns once the waiter of a lock is in the queue.
func WakeUps(tb testing.TB, rounds int, waits, holds Peer, names func() string, queued func(name string)) {
	tb.Helper()
	var took []time.Duration
	for range rounds {
		took = append(took, wakeUp(tb, waits, holds, names(), queued))
	}
	if _, longest := Quantiles(tb, fmt.Sprintf("%T woken by %T", waits, holds), took); longest > prompt {
		tb.Errorf("%T was woken after %v, want less than %v", waits, longest, prompt)
	}
}

// wakeUp returns the time from a holder's unlock until a waiter has the lock.
func wakeUp(tb testing.TB, waits, holds Peer, name string, queued func(name string)) time.Duration {
	tb.Helper()
	h := Take(tb, holds, name)
	w := StartWaiter(tb, waits, name)
	queued(name)
	w.Waits(tb)
	start := time.Now()
	Give(tb, h)
	g := w.Granted(tb)
	if g.Fence() > 0 && g.Fence() <= h.Fence() {
		tb.Errorf("fence %d came after %d", g.Fence(), h.Fence())
	}
	Give(tb, g)
	return g.At.Sub(start)
}

// Quantiles logs how long something took, and returns the median and the longest time.
func Quantiles(tb testing.TB, what string, took []time.Duration) (p50, longest time.Duration) {
	slices.Sort(took)
	p50, p99 := took[len(took)/2], took[len(took)*99/100]
	tb.Logf("%s after: p50 %v, p99 %v (%d times)", what, Round(p50), Round(p99), len(took))
	return p50, took[len(took)-1]
}

// Round rounds a duration for the log.
func Round(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }
