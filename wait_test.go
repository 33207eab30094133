package distlock_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// WaitAtMost bounds the wait, not the work.
func TestWaitAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := client(t, memlock.New(), nil)
		held := mustLock(t, c.Mutex("m"))
		for what, m := range map[string]*distlock.Mutex{
			"unfair": c.Mutex("m", distlock.WaitAtMost(time.Second)),
			"fair":   c.Mutex("m", distlock.WaitAtMost(time.Second), distlock.Fair()),
		} {
			began := time.Now()
			_, err := m.Lock(t.Context())
			if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, distlock.ErrHeld) {
				t.Errorf("%s: got %v; want the end of the wait and ErrHeld", what, err)
			}
			within(t, what+": a wait ended", time.Since(began), time.Second, 0)
		}
		mustUnlock(t, held)
		err := c.Mutex("m", distlock.WaitAtMost(time.Second)).Do(t.Context(), func(ctx context.Context) error {
			time.Sleep(time.Minute)
			return ctx.Err()
		})
		expect.OK(t, err, "the work was cut short")
		ctx, cancel := context.WithCancel(t.Context())
		err = c.Mutex("m", distlock.WaitAtMost(time.Second)).Do(ctx, func(ctx context.Context) error {
			cancel()
			<-ctx.Done()
			return ctx.Err()
		})
		expect.Be(t, err, context.Canceled, "the work goes on after its caller has gone")
		lease := mustLock(t, c.Mutex("m", distlock.WaitAtMost(time.Second)))
		if time.Sleep(time.Minute); lease.Context().Err() != nil || lease.Err() != nil {
			t.Errorf("the lease ended with the wait: %v", lease.Err())
		}
		mustUnlock(t, lease)
		for _, d := range []time.Duration{0, -time.Second} {
			expect.Be(t, expect.Err(c.Mutex("m", distlock.WaitAtMost(d)).Lock(t.Context())), distlock.ErrInvalid, "WaitAtMost", d)
		}
	})
}

// A holder that is said to stay for centuries is asked about as often as any other.
func TestRetryAfterCenturies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newRig()
		b.noWatch = true
		b.acquire = func(context.Context, driver.Request, acquirer) (driver.Grant, error) {
			return driver.Grant{}, &driver.HeldError{Retry: math.MaxInt64}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		expect.Be(t, expect.Err(client(t, b, nil).Mutex("x").Lock(ctx)), context.DeadlineExceeded)
		if n := b.acquires.Load(); n > 1000 {
			t.Errorf("%d attempts in ten seconds", n)
		}
	})
}

// A waiter who is told when it is let in tries again each ten seconds, or three times in a TTL where that keeps its place; every other one each
// second. Either is granted as soon as the lock is released.
func TestAttemptsOfAWaiter(t *testing.T) {
	deaf := func(ctx context.Context, r driver.Request, next acquirer) (driver.Grant, error) {
		g, err := next(ctx, r)
		if held := (*driver.HeldError)(nil); errors.As(err, &held) {
			held.Signaled = false
		}
		return g, err
	}
	session := func(c driver.Caps) driver.Caps {
		c.Session = true
		return c
	}
	const ttl = 6 * time.Second
	for name, c := range map[string]struct {
		change      func(*rig)
		ttl         time.Duration
		least, most int64
	}{
		"told":                     {func(*rig) {}, 0, 6, 10},
		"told, with a short TTL":   {func(*rig) {}, ttl, 30, 42},
		"told, with a session":     {func(r *rig) { r.caps = session }, ttl, 6, 10},
		"not told":                 {func(r *rig) { r.acquire = deaf }, 0, 40, 100},
		"not told, with a session": {func(r *rig) { r.acquire, r.caps = deaf, session }, 0, 40, 100},
		"without a watch":          {func(r *rig) { r.noWatch = true }, 0, 3000, 4500},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memlock.NewStore()
				holder := client(t, store.Connect(), nil)
				b := &rig{Backend: store.Connect()}
				c.change(b)
				waiter := client(t, b, &distlock.Options{TTL: c.ttl})
				held := mustLock(t, holder.Mutex("m"))
				granted := make(chan *distlock.Lease)
				go func() { granted <- mustLock(t, waiter.Mutex("m")) }()
				time.Sleep(time.Second)
				before := b.acquires.Load()
				time.Sleep(time.Minute)
				if n := b.acquires.Load() - before; n < c.least || n > c.most {
					t.Errorf("%d attempts in a minute, want %d to %d", n, c.least, c.most)
				}
				if info := must.Get(holder.Inspect(t.Context(), "m"))(t); len(info.Waiters) != 1 || info.Waiters[0].Left < c.ttl/2 {
					if !b.Caps().Session { // which keeps it
						t.Errorf("the place was not kept: %+v", info.Waiters)
					}
				}
				released := time.Now()
				mustUnlock(t, held)
				lease := <-granted
				if late := time.Since(released); late > 0 && !b.noWatch {
					t.Errorf("granted %v after the release", late)
				}
				mustUnlock(t, lease)
			})
		})
	}
}
