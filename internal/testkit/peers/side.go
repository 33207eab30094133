// Package peers is what tests have in common which show that distlock shares its locks
// with others that Go can call: participants of both sides, who take turns and wait for
// each other.
package peers

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
)

// Patience is how long tests wait for what must come.
const Patience = 2 * time.Minute

// Side is one participant of one kind.
type Side interface {
	// Lock waits as its kind does. Names are distlock's.
	Lock(ctx context.Context, name string) (Held, error)
}

// Held is a lock that a side got.
type Held interface {
	Unlock(ctx context.Context) error
	// Fence is the number that its user can give to what the lock protects; 0: there is
	// none.
	Fence() uint64
}

// Tryer is a side that can make one attempt. Nothing was got, and no error: somebody else
// holds the lock.
type Tryer interface {
	Side
	Try(ctx context.Context, name string) (Held, error)
}

// Distlock is distlock's side.
type Distlock struct {
	*distlock.Client
	Options []distlock.LockOption
}

// NewDistlock makes a client, which ends with the test.
func NewDistlock(tb testing.TB, b driver.Backend, opts *distlock.Options) Distlock {
	tb.Helper()
	c, err := distlock.New(b, opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.Close() })
	return Distlock{Client: c}
}

// With is a side of the same client, whose locks have these options.
func (s Distlock) With(options ...distlock.LockOption) Distlock {
	s.Options = options
	return s
}

// Lock is that of a Mutex.
func (s Distlock) Lock(ctx context.Context, name string) (Held, error) {
	l, err := s.Mutex(name, s.Options...).Lock(ctx)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// Try is TryLock of a Mutex.
func (s Distlock) Try(ctx context.Context, name string) (Held, error) {
	l, err := s.Mutex(name, s.Options...).TryLock(ctx)
	switch {
	case errors.Is(err, distlock.ErrHeld):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return l, nil
}

// Take is a lock that nobody else has.
func Take(tb testing.TB, s Side, name string) Held {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), Patience)
	defer cancel()
	h, err := s.Lock(ctx, name)
	if err != nil {
		tb.Fatal(err)
	}
	return h
}

// Give gives a lock back.
func Give(tb testing.TB, h Held) {
	tb.Helper()
	if err := h.Unlock(tb.Context()); err != nil {
		tb.Fatalf("unlock: %v", err)
	}
}

// Eventually asks again and again.
func Eventually(tb testing.TB, complaint string, is func() bool) {
	tb.Helper()
	for end := time.Now().Add(Patience); !is(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatal(complaint)
		}
	}
}
