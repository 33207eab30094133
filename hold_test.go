package distlock_test

import (
	"context"
	"errors"
	"strconv"
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

// Two things happen to one hold at the same time.

// A hold that is becoming a reader is not handed off to a writer.
func TestUnlockDuringADowngrade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		c := client(t, r, &distlock.Options{HandoffWindow: time.Hour})
		rw := c.RWMutex("x")
		first := mustLock(t, rw)
		second := waiter(t, t.Context(), rw)
		r.set(func(r *rig) {
			r.acquire = func(ctx context.Context, req driver.Request, next acquirer) (driver.Grant, error) {
				time.Sleep(100 * time.Millisecond)
				return next(ctx, req)
			}
		})
		downgraded := make(chan error, 1)
		go func() { downgraded <- first.Downgrade(t.Context()) }()
		synctest.Wait()
		_ = first.Unlock(t.Context()) // ErrLost if the downgrade gave it up
		expect.Be(t, <-downgraded, distlock.ErrReleased, "Downgrade")
		w := <-second
		time.Sleep(time.Second)
		if rd, err := rw.TryRLock(t.Context()); err == nil {
			t.Errorf("a reader (fence %d) beside a writer (fence %d, mode %v)", rd.Fence(), w.Fence(), w.Mode())
		}
		mustUnlock(t, w)
	})
}

// An Extend that failed leaves the renewals as they were.
func TestLeaseOutlivesAFailedExtend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		c := client(t, r, nil)
		lease := mustLock(t, c.Mutex("x"))
		r.set(func(r *rig) { r.renew = blackHole })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := lease.Extend(ctx, time.Hour); err == nil {
			t.Error("an Extend without an answer succeeded")
		}
		r.set(func(r *rig) { r.renew = nil })
		time.Sleep(time.Minute)
		if lease.Err() != nil {
			t.Errorf("lost: %v after %d renewals", lease.Err(), r.renews.Load())
		}
		mustUnlock(t, lease)
	})
}

// A hold whose batch has a silent hold is unlocked soon, but not while its renewal is in flight.
func TestUnlockBesideADeadHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		var inFlight atomic.Int64
		r.renew = func(ctx context.Context, holds []driver.Hold, next renewer) []error {
			inFlight.Add(1)
			defer inFlight.Add(-1)
			errs := next(ctx, holds)
			for i, h := range holds {
				if h.Name == "dead" {
					<-ctx.Done()
					errs[i] = ctx.Err()
				}
			}
			return errs
		}
		r.release = func(ctx context.Context, h driver.Hold, next releaser) error {
			if n := inFlight.Load(); n > 0 || ctx.Err() != nil {
				t.Errorf("released with %d renewals in flight, %v", n, ctx.Err())
			}
			return next(ctx, h)
		}
		c := client(t, r, nil)
		mustLock(t, c.Mutex("dead"))
		a := mustLock(t, c.Mutex("a"))
		time.Sleep(10500 * time.Millisecond)
		start := time.Now()
		err := a.Unlock(t.Context())
		if err != nil || time.Since(start) > time.Second {
			t.Errorf("Unlock of a healthy lock: %v after %v", err, time.Since(start))
		}
	})
}

// Close waits for an Unlock that is under way.
func TestCloseBesideUnlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		r := &rig{Backend: store.Connect()}
		r.release = func(ctx context.Context, h driver.Hold, next releaser) error {
			time.Sleep(100 * time.Millisecond)
			return next(ctx, h)
		}
		other := client(t, store.Connect(), nil)
		c := must.Get(distlock.New(r, nil))(t)
		lease := mustLock(t, c.Mutex("x"))
		unlocked := make(chan error, 1)
		go func() { unlocked <- lease.Unlock(context.Background()) }()
		synctest.Wait()
		expect.OK(t, c.Close(), "Close")
		expect.OK(t, <-unlocked, "Unlock")
		free(t, other, "x")
	})
}

// While the backend is silent, Close ends no lease later than its deadline, however many there are.
func TestCloseOfManyLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		r.release = func(ctx context.Context, _ driver.Hold, _ releaser) error {
			<-ctx.Done()
			return ctx.Err()
		}
		c := must.Get(distlock.New(r, nil))(t)
		for i := range 1000 {
			lease := mustLock(t, c.Mutex(strconv.Itoa(i), distlock.WithTTL(3*time.Second), distlock.WithoutRenewal()))
			context.AfterFunc(lease.Context(), func() {
				if late := time.Since(lease.Deadline()); late > 0 {
					t.Errorf("the context of lease %d ended %v after its deadline", i, late)
				}
			})
		}
		time.Sleep(time.Second)
		if err := c.Close(); err == nil {
			t.Error("nothing was released, and Close succeeded")
		}
	})
}

// Close of many locks ends in time at a distance from the store, since more releases are under way at once. A store that takes
// its time for each is not crowded.
func TestLargeCloseAtADistance(t *testing.T) {
	for what, test := range map[string]struct {
		locks, most int64
		turns       bool // the store answers one call after the other
	}{"far": {10_000, 1024, false}, "slow": {2_000, 70, true}} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig()
				c := must.Get(distlock.New(r, nil))(t)
				for i := range test.locks {
					mustLock(t, c.Mutex(strconv.FormatInt(i, 10)))
				}
				var at, most atomic.Int64
				turn := make(chan struct{}, 1)
				r.release = func(ctx context.Context, h driver.Hold, next releaser) error {
					most.Store(max(most.Load(), at.Add(1)))
					defer at.Add(-1)
					if test.turns {
						turn <- struct{}{}
						time.Sleep(time.Millisecond)
						<-turn
					} else {
						time.Sleep(100 * time.Millisecond)
					}
					return next(ctx, h)
				}
				expect.OK(t, c.Close(), "Close")
				if most.Load() > test.most {
					t.Errorf("%d releases at once", most.Load())
				}
			})
		})
	}
}

// An Unlock that meets Close does not report a loss. Other goroutines contend for the mutex of the hold, so that either
// of the two may get it first, whichever has ended the lease.
func TestUnlockMeetsClose(t *testing.T) {
	for range 200 {
		c := must.Get(distlock.New(memlock.NewStore().Connect(), nil))(t)
		lease := mustLock(t, c.Mutex("x"))
		var wg sync.WaitGroup
		done := make(chan struct{})
		for range 8 {
			wg.Go(func() {
				for {
					select {
					case <-done:
						return
					default:
						lease.Mode()
					}
				}
			})
		}
		closed := make(chan error, 1)
		context.AfterFunc(lease.Context(), func() { closed <- c.Close() })
		if err := lease.Unlock(t.Context()); errors.Is(err, distlock.ErrLost) {
			t.Errorf("Unlock: %v", err)
		}
		expect.OK(t, <-closed, "Close")
		close(done)
		wg.Wait()
		if t.Failed() {
			return
		}
	}
}

// The time for which a process yields to others is bounded, even with a long hand-off window.
func TestYieldIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		other := client(t, store.Connect(), nil)
		held := mustLock(t, other.Mutex("x"))
		c := client(t, store.Connect(), &distlock.Options{HandoffWindow: time.Minute})
		m := c.Mutex("x")
		got := waiter(t, t.Context(), m)
		mustUnlock(t, held)
		mustUnlock(t, <-got)
		start := time.Now()
		mustUnlock(t, mustLock(t, m))
		if d := time.Since(start); d > time.Second {
			t.Errorf("waited %v for a free lock", d)
		}
	})
}

// An extended hold is not handed off to a waiter that requested a shorter TTL.
func TestNoHandOffOfAnExtendedHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		c := client(t, r, &distlock.Options{HandoffWindow: time.Hour})
		m := c.Mutex("x")
		first := mustLock(t, m)
		second := waiter(t, t.Context(), m)
		must.OK(t, first.Extend(t.Context(), time.Hour))
		mustUnlock(t, first)
		l := <-second
		time.Sleep(2 * time.Hour)
		info := must.Get(c.Inspect(t.Context(), "x"))(t)
		if left := info.Holders[0].Left; left > ttl {
			t.Errorf("a holder that requested a TTL of %v holds for another %v if it dies", ttl, left)
		}
		mustUnlock(t, l)
	})
}

// A release without an answer is retried for as long as the hold may last.
func TestReleaseGoesOnForAnExtendedHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		c := client(t, r, nil)
		lease := mustLock(t, c.Mutex("x"))
		must.OK(t, lease.Extend(t.Context(), time.Hour))
		r.set(func(r *rig) {
			r.release = func(context.Context, driver.Hold, releaser) error { return errNetwork }
		})
		if err := lease.Unlock(t.Context()); err == nil {
			t.Error("a release without an answer succeeded")
		}
		time.Sleep(time.Minute)
		r.set(func(r *rig) { r.release = nil })
		time.Sleep(10 * time.Minute)
		free(t, c, "x")
	})
}

// The end of one caller's context is not reported to another caller.
func TestErrorsOfOthersContexts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		r.acquire = func(ctx context.Context, req driver.Request, next acquirer) (driver.Grant, error) {
			<-ctx.Done()
			return driver.Grant{}, ctx.Err()
		}
		c := client(t, r, nil)
		m := c.Mutex("x")
		actx, cancel := context.WithCancel(t.Context())
		a := waiter(t, actx, m)
		bctx, bcancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer bcancel()
		errs := make(chan error, 1)
		go func() { _, err := m.Lock(bctx); errs <- err }()
		synctest.Wait()
		cancel()
		<-a
		synctest.Wait()
		if _, err := m.TryLock(t.Context()); errors.Is(err, context.Canceled) {
			t.Errorf("TryLock whose context lives: %v", err)
		}
		if err := <-errs; errors.Is(err, context.Canceled) {
			t.Errorf("Lock whose context ran into its deadline: %v", err)
		}
	})
}

func TestCallsAfterUnlock(t *testing.T) {
	c := client(t, memlock.New(), nil)
	lease := mustLock(t, c.RWMutex("x"))
	mustUnlock(t, lease)
	if err := lease.Extend(t.Context(), time.Hour); !errors.Is(err, distlock.ErrReleased) || errors.Is(err, distlock.ErrUnavailable) {
		t.Errorf("Extend: %v, want ErrReleased", err)
	}
	expect.Be(t, lease.Downgrade(t.Context()), distlock.ErrReleased, "Downgrade")
}

// Extend keeps its promise or returns an error.
func TestExtendBeyondMaxHold(t *testing.T) {
	c := client(t, memlock.New(), nil)
	lease := mustLock(t, c.Mutex("x", distlock.MaxHold(time.Minute)))
	expect.Be(t, lease.Extend(t.Context(), time.Hour), distlock.ErrInvalid, "Extend")
	if err := lease.Extend(t.Context(), 40*time.Second); err != nil || time.Until(lease.Deadline()) < 39*time.Second {
		t.Errorf("Extend: %v, deadline in %v", err, time.Until(lease.Deadline()))
	}
	mustUnlock(t, lease)
}

// tracked is a rig that notices two calls at once for one Owner.
type tracked struct {
	*rig
	t  *testing.T
	mu sync.Mutex
	in map[string]string
}

func (b *tracked) enter(owner, op string) func() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if was := b.in[owner]; was != "" {
		b.t.Errorf("%s while %s of the same Owner is in flight", op, was)
		return func() {}
	}
	b.in[owner] = op
	return func() {
		b.mu.Lock()
		delete(b.in, owner)
		b.mu.Unlock()
	}
}

func (b *tracked) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	defer b.enter(r.Owner, "Acquire "+r.Mode.String())()
	return b.rig.Acquire(ctx, r)
}

func (b *tracked) Release(ctx context.Context, h driver.Hold) error {
	defer b.enter(h.Owner, "Release "+h.Mode.String())()
	return b.rig.Release(ctx, h)
}

func (b *tracked) Renew(ctx context.Context, hs []driver.Hold) []error {
	for _, h := range hs {
		defer b.enter(h.Owner, "Renew")()
	}
	return b.rig.Renew(ctx, hs)
}

// The core never makes two calls at once for one Owner.
func TestOneCallAtATimePerOwner(t *testing.T) {
	scenes := map[string]func(*testing.T, *tracked, *distlock.Client){
		"unlock after a loss without proof": func(t *testing.T, b *tracked, c *distlock.Client) {
			b.set(func(r *rig) { r.renew = blackHole })
			l := mustLock(t, c.Mutex("x"))
			<-l.Context().Done()
			_ = l.Unlock(t.Context())
		},
		"unlock during a renewal": func(t *testing.T, b *tracked, c *distlock.Client) {
			b.set(func(r *rig) { r.renew = blackHole })
			l := mustLock(t, c.Mutex("x"))
			time.Sleep(10100 * time.Millisecond)
			_ = l.Unlock(t.Context())
		},
		"unlock after a failed downgrade": func(t *testing.T, b *tracked, c *distlock.Client) {
			l := mustLock(t, c.RWMutex("x"))
			b.set(func(r *rig) {
				r.release = func(ctx context.Context, h driver.Hold, next releaser) error {
					time.Sleep(time.Millisecond)
					return next(ctx, h)
				}
				r.acquire = func(context.Context, driver.Request, acquirer) (driver.Grant, error) {
					return driver.Grant{}, errNetwork
				}
			})
			_ = l.Downgrade(t.Context())
			_ = l.Unlock(t.Context())
		},
	}
	for name, scene := range scenes {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &tracked{rig: newRig(), t: t, in: map[string]string{}}
				scene(t, b, client(t, b, nil))
				time.Sleep(time.Minute) // for work in the background
			})
		})
	}
}

// A release without an answer may land late: its Owner makes no more requests.
func TestLateReleaseHitsNoSuccessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		r := &rig{Backend: store.Connect()}
		c, other := client(t, r, &distlock.Options{HandoffMax: -1}), client(t, store.Connect(), nil)
		first := mustLock(t, c.Mutex("x"))
		second := waiter(t, t.Context(), c.Mutex("x"))
		ahead, cancel := context.WithCancel(t.Context())
		fair := waiter(t, ahead, other.Mutex("x", distlock.Fair()))
		r.release = func(_ context.Context, h driver.Hold, next releaser) error {
			if r.releases.Load() == 1 {
				time.AfterFunc(5*time.Second, func() { next(context.Background(), h) })
				cancel()
			}
			return errNetwork
		}
		first.Unlock(t.Context()) // without an answer
		<-fair
		time.Sleep(time.Second)
		r.set(func(r *rig) { r.release = nil })
		lease := <-second
		time.Sleep(time.Minute)
		expect.OK(t, lease.Err(), "the lease")
		mustUnlock(t, lease)
	})
}
