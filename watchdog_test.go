package distlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

const ttl = 30 * time.Second

func TestHeldForTenMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		c := client(t, r, nil)
		start := time.Now()
		lease := mustLock(t, c.Mutex("x"))
		ctx := lease.Context()
		time.Sleep(10 * time.Minute)
		if lease.Err() != nil || ctx.Err() != nil {
			t.Fatalf("after ten minutes: %v, %v", lease.Err(), ctx.Err())
		}
		if n := r.renews.Load(); n != 59 && n != 60 {
			t.Errorf("%d renewals in ten minutes, want one each 10 s", n)
		}
		if d := lease.Deadline().Sub(start); d < 10*time.Minute+15*time.Second {
			t.Errorf("deadline %v after the start", d)
		}
		mustUnlock(t, lease)
		free(t, c, "x")
		renews := r.renews.Load()
		time.Sleep(time.Hour)
		expect.Equal(t, r.renews.Load(), renews, "renewed after Unlock")
	})
}

func TestFirstRenewalAtAThirdOfTheTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		start := time.Now()
		renewed := make(chan time.Duration, 10)
		r.renew = func(ctx context.Context, holds []driver.Hold, next renewer) []error {
			renewed <- time.Since(start)
			return next(ctx, holds)
		}
		lease := mustLock(t, client(t, r, nil).Mutex("x"))
		within(t, "first renewal", <-renewed, ttl/3, 0)
		mustUnlock(t, lease)
	})
}

// A renewal without an answer is retried until the deadline. The lease ends exactly then: TTL less
// margin, counted from before the request for the grant.
func TestLostWithoutAnAnswer(t *testing.T) {
	renewals := map[string]func(context.Context, []driver.Hold, renewer) []error{
		"black hole": blackHole,
		"error": func(_ context.Context, holds []driver.Hold, _ renewer) []error {
			return allErrors(holds, errNetwork)
		},
		"too few answers": func(context.Context, []driver.Hold, renewer) []error { return nil },
	}
	for name, renew := range renewals {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { lostWithoutAnAnswer(t, renew) })
		})
	}
}

func lostWithoutAnAnswer(t *testing.T, renew func(context.Context, []driver.Hold, renewer) []error) {
	r := newRig()
	r.renew = renew
	r.acquire = func(ctx context.Context, req driver.Request, next acquirer) (driver.Grant, error) {
		time.Sleep(2 * time.Second) // the grant takes its time: the deadline counts from before
		return next(ctx, req)
	}
	c := client(t, r, nil)
	start := time.Now()
	lease := mustLock(t, c.Mutex("x"))
	<-lease.Context().Done()
	within(t, "context ended", time.Since(start), 29*time.Second, 0)
	expect.Be(t, context.Cause(lease.Context()), distlock.ErrLost, "cause")
	if n := r.renews.Load(); n < 3 {
		t.Errorf("%d renewals before the end, want several", n)
	}
	expect.Be(t, lease.Unlock(t.Context()), distlock.ErrLost, "Unlock")
	expect.Be(t, lease.Err(), distlock.ErrLost, "Err")
	r.set(func(r *rig) { r.acquire = nil })
	mustUnlock(t, mustLock(t, c.Mutex("x"))) // nothing is left at the backend
}

// A late answer counts from its request.
func TestLateRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		first := true
		r.renew = func(ctx context.Context, holds []driver.Hold, next renewer) []error {
			if !first {
				return blackHole(ctx, holds, next)
			}
			first = false
			errs := next(ctx, holds)
			time.Sleep(5 * time.Second)
			return errs
		}
		lease := mustLock(t, client(t, r, nil).Mutex("x"))
		start := time.Now()
		<-lease.Context().Done()
		within(t, "context ended", time.Since(start), 10*time.Second+29*time.Second, 0)
	})
}

func TestLostAsAFact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		c := client(t, r, nil)
		lease := mustLock(t, c.Mutex("x"))
		info := must.Get(c.Inspect(t.Context(), "x"))(t)
		must.OK(t, client(t, r, nil).ForceUnlock(t.Context(), info))
		start := time.Now()
		<-lease.Context().Done()
		within(t, "loss seen", time.Since(start), 10*time.Second, 0)
		releases := r.releases.Load()
		expect.Be(t, lease.Unlock(t.Context()), distlock.ErrLost, "Unlock")
		expect.Equal(t, r.releases.Load(), releases, "Unlock of a lock that is lost for certain called the backend")
	})
}

// The backend may report by itself that a hold is gone, even before Acquire returns.
func TestBackendTellsOfLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		var onLost func()
		early := false
		r.acquire = func(ctx context.Context, req driver.Request, next acquirer) (driver.Grant, error) {
			onLost = req.OnLost
			if early {
				early = false
				onLost()
			}
			return next(ctx, req)
		}
		c := client(t, r, nil)
		lease := mustLock(t, c.Mutex("x"))
		start := time.Now()
		onLost()
		<-lease.Context().Done()
		within(t, "loss seen", time.Since(start), 0, 0)

		early = true
		lease = mustLock(t, c.Mutex("y"))
		expect.OK(t, lease.Err(), "Lock returned a lease that was lost before")
	})
}

// The context may be first used after the lease has ended.
func TestLateContextIsBornCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		r.renew = blackHole
		c := client(t, r, nil)
		lost := mustLock(t, c.Mutex("x"))
		time.Sleep(time.Minute)
		expect.Be(t, context.Cause(lost.Context()), distlock.ErrLost, "cause")
		released := mustLock(t, c.Mutex("y"))
		mustUnlock(t, released)
		expect.Be(t, context.Cause(released.Context()), distlock.ErrReleased, "cause")
	})
}

// Err looks at the clock: it does not wait for a watchdog that is behind.
func TestErrLooksAtTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		c := client(t, r, nil)
		lease := mustLock(t, c.Mutex("x", distlock.WithoutRenewal()))
		time.Sleep(time.Until(lease.Deadline()))
		expect.Be(t, lease.Err(), distlock.ErrLost, "at the deadline")
	})
}

// A hold whose renewals get no answer stalls neither the renewal nor the unlock of others.
func TestOneStallDoesNotSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		r.renew = func(ctx context.Context, holds []driver.Hold, next renewer) []error {
			errs := next(ctx, holds)
			for i, h := range holds {
				if h.Name == "dead" {
					<-ctx.Done()
					errs[i] = ctx.Err()
				}
			}
			return errs
		}
		c := client(t, r, nil)
		dead := mustLock(t, c.Mutex("dead"))
		var leases []*distlock.Lease
		for i := range 5 {
			leases = append(leases, mustLock(t, c.Mutex(fmt.Sprint(i))))
		}
		time.Sleep(25 * time.Second) // the dead one has no answers, and is in batches of its own
		start := time.Now()
		for _, l := range leases {
			if l.Err() != nil {
				t.Errorf("%s: %v", l.Name(), l.Err())
			}
			mustUnlock(t, l)
		}
		within(t, "five unlocks", time.Since(start), 0, 0)
		<-dead.Context().Done()
		expect.Be(t, dead.Err(), distlock.ErrLost, "dead")
	})
}

// A short lease that comes while the timer is set for a long one is renewed in time.
func TestShortTTLAfterALongOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := client(t, newRig(), &distlock.Options{TTL: time.Hour})
		long := mustLock(t, c.Mutex("long"))
		time.Sleep(time.Second)
		short := mustLock(t, c.Mutex("short", distlock.WithTTL(time.Second)))
		time.Sleep(5 * time.Minute)
		expect.OK(t, errors.Join(short.Err(), long.Err()))
		mustUnlock(t, short)
		mustUnlock(t, long)
	})
}

func TestRenewalsAreBatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		c := client(t, r, nil)
		var leases []*distlock.Lease
		for i := range 3000 {
			leases = append(leases, mustLock(t, c.Mutex(fmt.Sprint(i))))
			time.Sleep(time.Millisecond / 4) // spread over three quarters of a second
		}
		time.Sleep(9 * time.Second)
		r.renews.Store(0)
		time.Sleep(10 * time.Second)
		if n := r.renews.Load(); n > 6 {
			t.Errorf("%d calls to renew 3000 leases once, want at most 6", n)
		}
		for _, l := range leases {
			mustUnlock(t, l)
		}
	})
}

// Unlock waits for the renewal of its own hold that is in flight: nothing may be
// sent for it after the release.
func TestUnlockWaitsForItsRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		var mu sync.Mutex
		inFlight := 0
		r.renew = func(ctx context.Context, holds []driver.Hold, next renewer) []error {
			mu.Lock()
			inFlight++
			mu.Unlock()
			time.Sleep(2 * time.Second)
			mu.Lock()
			inFlight--
			mu.Unlock()
			return next(ctx, holds)
		}
		r.release = func(ctx context.Context, h driver.Hold, next releaser) error {
			mu.Lock()
			defer mu.Unlock()
			if inFlight > 0 {
				t.Error("released while a renewal was in flight")
			}
			return next(ctx, h)
		}
		c := client(t, r, nil)
		lease := mustLock(t, c.Mutex("x"))
		time.Sleep(11 * time.Second) // a renewal has been in flight for a second
		start := time.Now()
		mustUnlock(t, lease)
		within(t, "unlock", time.Since(start), time.Second, 0)
	})
}

// A lease with a great margin is renewed in time.
func TestGreatMargin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := client(t, newRig(), &distlock.Options{TTL: 10 * time.Second, Margin: 9 * time.Second})
		lease := mustLock(t, c.Mutex("x"))
		time.Sleep(time.Minute)
		mustUnlock(t, lease)
	})
}

// The contexts of leases that are lost together end together, however long the observer takes for each.
func TestSlowObserverOfLosses(t *testing.T) {
	for what, answer := range map[string]func(context.Context, []driver.Hold, renewer) []error{
		"no answer": blackHole,
		"lost": func(_ context.Context, holds []driver.Hold, _ renewer) []error {
			return allErrors(holds, driver.ErrLost)
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig()
			var told atomic.Int64
			c := client(t, r, &distlock.Options{Observer: &distlock.Observer{Lost: func(distlock.Event) {
				told.Add(1)
				time.Sleep(time.Hour)
			}}})
			var leases []*distlock.Lease
			for i := range 10 {
				leases = append(leases, mustLock(t, c.Mutex(fmt.Sprint(i))))
			}
			r.set(func(r *rig) { r.renew = answer })
			<-leases[0].Context().Done()
			time.Sleep(time.Second)
			for i, l := range leases {
				if l.Context().Err() == nil || !errors.Is(l.Err(), distlock.ErrLost) {
					t.Errorf("%s: lease %d goes on: %v", what, i, l.Err())
				}
			}
			time.Sleep(11 * time.Hour)
			expect.Equal(t, told.Load(), int64(len(leases)), what, "losses were reported")
		})
	}
}

func TestMaxHold(t *testing.T) {
	for _, max := range []time.Duration{10 * time.Second, 2 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			c := client(t, newRig(), nil)
			start := time.Now()
			lease := mustLock(t, c.Mutex("x", distlock.MaxHold(max)))
			<-lease.Context().Done()
			within(t, "end of hold", time.Since(start), max, 0)
			expect.Be(t, lease.Err(), distlock.ErrLost, "Err")
			mustUnlock(t, mustLock(t, c.Mutex("x"))) // it frees itself
			within(t, "free again", time.Since(start), max, ttl+2*time.Second)
		})
	}
}

func TestFixedLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		c := client(t, r, nil)
		start := time.Now()
		lease := mustLock(t, c.Mutex("x", distlock.WithoutRenewal()))
		must.OK(t, lease.Extend(t.Context(), time.Minute))
		must.OK(t, lease.Extend(t.Context(), time.Second))
		<-lease.Context().Done()
		within(t, "end of a fixed lease", time.Since(start), time.Minute, 0)
		expect.Equal(t, r.renews.Load(), 1, "renewals of a fixed lease")
		expect.Be(t, lease.Extend(t.Context(), time.Minute), distlock.ErrLost, "Extend after the end")
	})
}

// Extend of a renewed lease holds through an outage that its TTL would not survive.
func TestExtendSurvivesAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		c := client(t, r, nil)
		lease := mustLock(t, c.Mutex("x"))
		must.OK(t, lease.Extend(t.Context(), 5*time.Minute))
		r.set(func(r *rig) { r.renew = blackHole })
		time.Sleep(4 * time.Minute)
		if lease.Err() != nil {
			t.Errorf("lost during the outage: %v", lease.Err())
		}
		r.set(func(r *rig) { r.renew = nil })
		time.Sleep(5 * time.Minute)
		mustUnlock(t, lease)
	})
}

func TestExtendUnanswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		c := client(t, r, nil)
		lease := mustLock(t, c.Mutex("x"))
		before := lease.Deadline()
		r.set(func(r *rig) { r.renew = blackHole })
		expect.Be(t, lease.Extend(t.Context(), time.Hour), distlock.ErrUnavailable, "Extend")
		if !lease.Deadline().Equal(before) {
			t.Error("an Extend without an answer moved the deadline")
		}
		r.set(func(r *rig) { r.renew = nil })
		mustUnlock(t, lease)
	})
}

// A lease without renewal is trusted for no longer than its TTL, even if the backend grants the
// remaining time of a session.
func TestFixedLeaseIsTrustedAsAsked(t *testing.T) {
	for what, take := range map[string]func(*testing.T, *distlock.Client) *distlock.Lease{
		"lock": func(t *testing.T, c *distlock.Client) *distlock.Lease {
			return mustLock(t, c.RWMutex("x", distlock.WithoutRenewal()))
		},
		"several": func(t *testing.T, c *distlock.Client) *distlock.Lease {
			m := must.Get(distlock.Multi(c.RWMutex("x", distlock.WithoutRenewal()), c.Mutex("y")).TryLock(t.Context()))(t)
			return m.Leases()[0]
		},
		"downgrade": func(t *testing.T, c *distlock.Client) *distlock.Lease {
			l := mustLock(t, c.RWMutex("x", distlock.WithoutRenewal()))
			must.OK(t, l.Downgrade(t.Context()))
			return l
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memlock.NewStore()
				r := newSession(store)
				r.acquire = func(ctx context.Context, req driver.Request, next acquirer) (driver.Grant, error) {
					req.TTL *= 2 // the remaining time of the session
					return next(ctx, req)
				}
				c, other := client(t, r, nil), client(t, store.Connect(), nil)
				start := time.Now()
				l := take(t, c)
				ended := make(chan time.Duration, 1)
				go func() {
					<-l.Context().Done()
					ended <- time.Since(start)
				}()
				next := mustLock(t, other.RWMutex("x"))
				within(t, "free for others", time.Since(start), ttl, 100*time.Millisecond)
				within(t, "lost", <-ended, ttl-time.Second, 0)
				mustUnlock(t, next)
			})
		})
	}
}
