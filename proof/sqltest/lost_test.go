package sqltest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// eachOnConnections runs a test with every strategy whose locks live on connections.
func eachOnConnections(t *testing.T, f func(t *testing.T, s strategy)) {
	for _, s := range strategies {
		if !s.leased {
			t.Run(s.name, func(t *testing.T) {
				t.Parallel()
				f(t, s)
			})
		}
	}
}

// backend opens a backend as a user, closed with the test.
func (s *scene) backend(userURL string) driver.Backend {
	s.t.Helper()
	b := must.Get(driver.Open(s.t.Context(), s.url(userURL)))(s.t)
	s.t.Cleanup(func() {
		closes(s.t, b)
	})
	return b
}

// closes closes a backend or a client, and fails the test if that takes too long.
func closes(t *testing.T, b interface{ Close() error }) {
	t.Helper()
	ends(t, "Close", func() {
		expect.OK(t, b.Close(), "close")
	})
}

func exclusive(name string) driver.Request {
	return driver.Request{Hold: driver.Hold{Name: name, Owner: driver.NewOwner(), Mode: driver.Exclusive, TTL: patience}, Fences: 1}
}

// acquire retries until the lock is granted, or until the outcome has been unknown for long.
func acquire(t *testing.T, b driver.Backend, r driver.Request) driver.Grant {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		g, err := b.Acquire(ctx, r)
		if err == nil {
			return g
		}
		if driver.Final(err) || ctx.Err() != nil {
			t.Fatalf("acquire %q: %v", r.Name, err)
		}
		time.Sleep(time.Millisecond)
	}
}

// An owner whose connection was killed may try again. The name stays usable, and Close returns.
func TestAcquireAgainOnAKilledConnection(t *testing.T) {
	t.Parallel()
	eachOnConnections(t, func(t *testing.T, s strategy) {
		c := newScene(t, s, s.kind.shared(t))
		user := c.user()
		b := c.backend(user)
		for i := range 8 {
			r := exclusive(fmt.Sprint("lock ", i))
			first := acquire(t, b, r)
			c.killConnections(user)
			if second := acquire(t, b, r); second.Fence <= first.Fence {
				t.Errorf("fence %d after %d", second.Fence, first.Fence)
			}
			expect.OK(t, b.Release(t.Context(), r.Hold))
		}
	})
}

// A lock that was lost with its connection can't be unlocked after another client has it.
func TestUnlockOfALostLock(t *testing.T) {
	t.Parallel()
	eachOnConnections(t, func(t *testing.T, s strategy) {
		c := newScene(t, s, s.kind.shared(t))
		c.calm()
		user := c.user()
		holder, next := c.party(user), c.party(c.user())
		for range 12 {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			held, err := holder.Mutex(lockName).Lock(ctx) // a connection may still be about to end
			must.OK(t, err)
			c.killConnections(user)
			successor := must.Get(next.Mutex(lockName).Lock(ctx))(t)
			expect.Be(t, held.Unlock(t.Context()), distlock.ErrLost, "Unlock of a lock that another client has")
			unlock(t, successor)
		}
	})
}
