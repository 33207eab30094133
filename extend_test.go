package distlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// Extend beside other calls for the same hold.

// extendMany extends each of many locks five times at random moments, beside its Unlock, and
// ignores the results.
func extendMany(t *testing.T, c *distlock.Client, by func() time.Duration, opts ...distlock.LockOption) {
	var wg sync.WaitGroup
	for i := range 300 {
		lease := mustLock(t, c.Mutex(fmt.Sprint(i), opts...))
		for range 5 {
			wg.Go(func() {
				time.Sleep(rand.N(50 * time.Millisecond))
				_ = lease.Extend(t.Context(), by())
			})
		}
		wg.Go(func() {
			time.Sleep(rand.N(100 * time.Millisecond))
			_ = lease.Unlock(t.Context())
		})
	}
	wg.Wait()
}

// An Unlock that keeps the hold for MinHold changes the end of the hold, which Extend reads. The
// race detector finds unsynchronized access.
func TestExtendBesideUnlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := client(t, newSession(memlock.NewStore()), nil)
		extendMany(t, c, func() time.Duration { return time.Minute + rand.N(time.Hour) }, distlock.MinHold(time.Second))
		time.Sleep(2 * time.Second)
		for name := range c.List(t.Context(), "") {
			free(t, c, name)
		}
	})
}

// A renewal requests the TTL that Extend changes. The race detector finds unsynchronized access.
func TestExtendBesideRenewals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		r.renew = func(ctx context.Context, holds []driver.Hold, next renewer) []error {
			time.Sleep(rand.N(12 * time.Millisecond))
			return next(ctx, holds)
		}
		slow := &distlock.Observer{Renewed: func(distlock.Event) { time.Sleep(time.Millisecond) }}
		c := client(t, r, &distlock.Options{TTL: 20 * time.Millisecond, CallTimeout: time.Second, Observer: slow})
		extendMany(t, c, func() time.Duration { return 20*time.Millisecond + rand.N(20*time.Millisecond) })
	})
}

// A hold that is being extended is not handed off to a waiter that requested less.
func TestUnlockDuringAnExtend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		c := client(t, r, &distlock.Options{HandoffWindow: time.Hour})
		m := c.Mutex("x")
		first := mustLock(t, m)
		second := waiter(t, t.Context(), m)
		r.set(func(r *rig) {
			r.renew = func(ctx context.Context, holds []driver.Hold, next renewer) []error {
				time.Sleep(100 * time.Millisecond)
				return next(ctx, holds)
			}
		})
		extended := make(chan error, 1)
		go func() { extended <- first.Extend(t.Context(), time.Hour) }()
		synctest.Wait()
		mustUnlock(t, first)
		if err := <-extended; !errors.Is(err, distlock.ErrReleased) || errors.Is(err, distlock.ErrLost) {
			t.Errorf("Extend: %v; want ErrReleased", err)
		}
		l := <-second
		r.set(func(r *rig) { r.renew = nil })
		time.Sleep(time.Minute)
		if left := inspect(t, c, "x").Holders[0].Left; left > ttl {
			t.Errorf("a holder that requested a TTL of %v holds for another %v if it dies", ttl, left)
		}
		mustUnlock(t, l)
	})
}

// An Extend that begins after its lease was unlocked does nothing to the hold, which may be
// another lease's by then.
func TestExtendAfterAHandOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		c := client(t, r, &distlock.Options{HandoffWindow: time.Hour})
		m := c.Mutex("x")
		first := mustLock(t, m)
		second := waiter(t, t.Context(), m)
		r.set(func(r *rig) {
			r.renew = func(ctx context.Context, holds []driver.Hold, next renewer) []error {
				time.Sleep(time.Second)
				return next(ctx, holds)
			}
		})
		time.Sleep(10100 * time.Millisecond) // a renewal is in flight, which Extend waits for
		extended := make(chan error, 1)
		go func() { extended <- first.Extend(t.Context(), time.Hour) }()
		synctest.Wait()
		mustUnlock(t, first)
		expect.Be(t, <-extended, distlock.ErrReleased, "Extend of an unlocked lease")
		l := <-second
		time.Sleep(time.Minute)
		if left := inspect(t, c, "x").Holders[0].Left; left > ttl {
			t.Errorf("a holder that requested a TTL of %v holds for another %v if it dies", ttl, left)
		}
		mustUnlock(t, l)
	})
}

// An Extend that waits for a renewal in flight, and which an Unlock overtakes, has lost nothing.
func TestExtendAfterUnlockHasBegun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, goOn := newRig(), make(chan struct{})
		lease := mustLock(t, client(t, b, nil).Mutex("x"))
		b.set(func(r *rig) {
			r.renew = func(_ context.Context, holds []driver.Hold, next renewer) []error {
				<-goOn
				return next(context.Background(), holds)
			}
		})
		for b.renews.Load() == 0 {
			time.Sleep(time.Second)
		}
		extended, unlocked := make(chan error, 1), make(chan error, 1)
		go func() { extended <- lease.Extend(t.Context(), time.Minute) }()
		synctest.Wait()
		go func() { unlocked <- lease.Unlock(t.Context()) }()
		synctest.Wait()
		close(goOn)
		expect.OK(t, <-unlocked, "Unlock")
		if err := <-extended; !errors.Is(err, distlock.ErrReleased) || errors.Is(err, distlock.ErrLost) {
			t.Errorf("Extend: %v; want ErrReleased", err)
		}
	})
}

// A backend never shortens the life of a hold. So a hold that would outlive the core's trust in it
// is released at the end. Others get the lock a TTL after it was last held.
func TestNothingOutlivesAnUnansweredExtend(t *testing.T) {
	for what, test := range map[string]struct {
		opts []distlock.LockOption
		deaf bool          // no later renewal has an answer
		want time.Duration // when others get the lock
	}{
		"fixed":      {opts: []distlock.LockOption{distlock.WithoutRenewal()}, want: ttl},
		"MaxHold":    {opts: []distlock.LockOption{distlock.MaxHold(2 * time.Hour)}, want: 2*time.Hour + time.Second},
		"no answers": {deaf: true, want: ttl},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memlock.NewStore()
				r := &rig{Backend: store.Connect()}
				c, other := client(t, r, nil), client(t, store.Connect(), nil)
				start := time.Now()
				lease := mustLock(t, c.Mutex("x", test.opts...))
				r.set(func(r *rig) {
					r.renew = func(ctx context.Context, holds []driver.Hold, next renewer) []error {
						next(ctx, holds)
						return allErrors(holds, errNetwork)
					}
				})
				must.Be(t, lease.Extend(t.Context(), time.Hour+30*time.Minute), distlock.ErrUnavailable, "Extend")
				if !test.deaf {
					r.set(func(r *rig) { r.renew = nil })
				}
				next := mustLock(t, other.Mutex("x"))
				within(t, "the next holder came", time.Since(start), test.want, time.Second)
				expect.Be(t, lease.Err(), distlock.ErrLost, "the lease")
				mustUnlock(t, next)
			})
		})
	}
}
