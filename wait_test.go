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
