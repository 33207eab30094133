package distlock_test

import (
	"context"
	"fmt"
	"slices"
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

// A lease that MinHold keeps after an Extend ends with MinHold, also if the backend does not
// answer for a while.
func TestMinHoldOfAnExtendedLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		r := &rig{Backend: store.Connect()}
		c, other := client(t, r, nil), client(t, store.Connect(), nil)
		start := time.Now()
		lease := mustLock(t, c.Mutex("x", distlock.MinHold(time.Minute)))
		must.OK(t, lease.Extend(t.Context(), time.Hour))
		r.set(func(r *rig) { r.renew = blackHole })
		mustUnlock(t, lease) // it lives long enough
		next := mustLock(t, other.Mutex("x"))
		within(t, "the next holder came", time.Since(start), time.Minute, time.Second)
		mustUnlock(t, next)
	})
}

// A MinHold that is longer than the TTL is kept, even if the backend is silent when the lock is unlocked.
func TestMinHoldAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		r := &rig{Backend: store.Connect()}
		c, other := client(t, r, nil), client(t, store.Connect(), nil)
		start := time.Now()
		lease := mustLock(t, c.Mutex("x", distlock.MinHold(5*time.Minute)))
		r.set(func(r *rig) { r.renew = blackHole })
		expect.Be(t, lease.Unlock(t.Context()), distlock.ErrUnavailable, "Unlock")
		r.set(func(r *rig) { r.renew = nil })
		next := mustLock(t, other.Mutex("x"))
		within(t, "the next holder came", time.Since(start), 5*time.Minute, time.Second)
		mustUnlock(t, next)
	})
}

// Holds that MinHold keeps beyond an outage are renewed by few goroutines at once, and none ends too early.
func TestManyMinHoldsAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const holds, outage = 300, 15 * time.Second
		store := memlock.NewStore()
		r := &rig{Backend: store.Connect()}
		c := client(t, r, nil)
		start := time.Now()
		var leases []*distlock.Lease
		for i := range holds {
			leases = append(leases, mustLock(t, c.Mutex(fmt.Sprint(i), distlock.MinHold(5*time.Minute))))
		}
		var calls, most atomic.Int64
		r.set(func(r *rig) {
			r.renew = func(ctx context.Context, holds []driver.Hold, next renewer) []error {
				most.Store(max(most.Load(), calls.Add(1)))
				defer calls.Add(-1)
				if time.Since(start) < outage {
					return blackHole(ctx, holds, next)
				}
				time.Sleep(time.Millisecond)
				return next(ctx, holds)
			}
		})
		var unlocks sync.WaitGroup
		for _, l := range leases {
			unlocks.Go(func() { _ = l.Unlock(t.Context()) })
		}
		unlocks.Wait()
		most.Store(0)
		time.Sleep(time.Minute)
		if n := most.Load(); n == 0 || n > 64 {
			t.Errorf("%d renewals at once", n)
		}
		time.Sleep(time.Until(start.Add(4 * time.Minute)))
		kept := 0
		for range c.List(t.Context(), "") {
			kept++
		}
		expect.Equal(t, kept, holds, "holds are kept")
		time.Sleep(2 * time.Minute)
		allFree(t, store)
	})
}

// An unanswered Extend may land after an Unlock that leaves the lock to MinHold. It does not keep
// the lock from others for longer.
func TestLateExtendBeforeMinHoldIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		r := &rig{Backend: store.Connect()}
		c, other := client(t, r, nil), client(t, store.Connect(), nil)
		start := time.Now()
		lease := mustLock(t, c.Mutex("x", distlock.MinHold(time.Minute)))
		r.set(func(r *rig) {
			r.renew = func(_ context.Context, holds []driver.Hold, next renewer) []error {
				time.AfterFunc(10*time.Second, func() { next(context.Background(), holds) })
				return allErrors(holds, errNetwork)
			}
		})
		expect.Be(t, lease.Extend(t.Context(), time.Hour), distlock.ErrUnavailable, "Extend")
		r.set(func(r *rig) { r.renew = nil })
		mustUnlock(t, lease)
		next := mustLock(t, other.Mutex("x"))
		within(t, "the next holder came", time.Since(start), time.Minute, time.Second)
		mustUnlock(t, next)
	})
}

// MinHold may be over before a renewal in flight is: Unlock does not take its own release for a loss.
func TestMinHoldEndsDuringAnUnlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		c := client(t, r, nil)
		r.set(func(r *rig) {
			r.renew = func(ctx context.Context, holds []driver.Hold, next renewer) []error {
				time.Sleep(2 * time.Second)
				return next(ctx, holds)
			}
		})
		lease := mustLock(t, c.Mutex("x", distlock.MinHold(ttl/3+time.Second)))
		time.Sleep(ttl/3 + time.Second/2)
		expect.OK(t, lease.Unlock(t.Context()), "Unlock")
		time.Sleep(time.Second)
		free(t, c, "x")
	})
}

// Close tells the observer of a hold that may end before MinHold is over.
func TestCloseThatCannotKeepMinHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		var told error
		c := must.Get(distlock.New(r, &distlock.Options{Observer: &distlock.Observer{Released: func(e distlock.Event) { told = e.Err }}}))(t)
		mustLock(t, c.Mutex("x", distlock.MinHold(2*ttl)))
		r.set(func(r *rig) { r.renew = blackHole })
		if err := c.Close(); err == nil || told == nil {
			t.Errorf("Close: %v, the observer was told: %v", err, told)
		}
	})
}

// MinHold is kept by the backend alone, whatever the program does after Unlock, and by a Close that comes before.
func TestMinHoldOfAProgramThatEnds(t *testing.T) {
	const minHold = 10 * ttl
	for what, end := range map[string]func(*testing.T, *rig, *distlock.Client, *distlock.Lease){
		"Unlock and no Close": func(t *testing.T, r *rig, c *distlock.Client, l *distlock.Lease) {
			mustUnlock(t, l)
			dead := func(context.Context, driver.Hold, releaser) error { return errNetwork }
			r.set(func(r *rig) { r.renew, r.release = blackHole, dead })
		},
		"Unlock and Close": func(t *testing.T, r *rig, c *distlock.Client, l *distlock.Lease) {
			mustUnlock(t, l)
			expect.OK(t, c.Close())
		},
		"Close": func(t *testing.T, r *rig, c *distlock.Client, l *distlock.Lease) {
			expect.OK(t, c.Close())
		},
		"Unlock without an answer, and Close": func(t *testing.T, r *rig, c *distlock.Client, l *distlock.Lease) {
			r.set(func(r *rig) { r.renew = blackHole })
			expect.Be(t, l.Unlock(t.Context()), distlock.ErrUnavailable, "Unlock")
			r.set(func(r *rig) { r.renew = nil })
			expect.OK(t, c.Close())
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memlock.NewStore()
				r := &rig{Backend: store.Connect()}
				c := must.Get(distlock.New(r, nil))(t)
				other := client(t, store.Connect(), nil)
				start := time.Now()
				end(t, r, c, mustLock(t, c.Mutex("x", distlock.MinHold(minHold))))
				if since := time.Since(start); since > ttl {
					t.Errorf("it took %v", since)
				}
				next := mustLock(t, other.Mutex("x"))
				within(t, "the next holder came", time.Since(start), minHold, time.Second)
				mustUnlock(t, next)
				r.giveBack()
				_ = c.Close()
			})
		})
	}
}

// A Close that meets grants keeps all their holds for MinHold, or there are none: it takes no hold for an older one.
func TestCloseMeetsGrantsWithMinHold(t *testing.T) {
	for range 20 {
		store := memlock.NewStore()
		c, other := must.Get(distlock.New(store.Connect(), nil))(t), client(t, store.Connect(), nil)
		var taken [4][]*distlock.Lease
		var all sync.WaitGroup
		for i := range taken {
			all.Go(func() {
				for {
					lease, err := c.Mutex(fmt.Sprint(i, ":", len(taken[i])), distlock.MinHold(2*ttl)).Lock(context.Background())
					if err != nil {
						expect.Be(t, err, distlock.ErrClosed, "Lock")
						return
					}
					taken[i] = append(taken[i], lease)
				}
			})
		}
		time.Sleep(time.Millisecond)
		expect.OK(t, c.Close(), "Close")
		all.Wait()
		for _, lease := range slices.Concat(taken[:]...) {
			must.Be(t, lease.Err(), distlock.ErrClosed, "the lease")
			info := must.Get(other.Inspect(t.Context(), lease.Name()))(t)
			if len(info.Holders) != 1 || info.Holders[0].Left < ttl {
				t.Fatalf("of a MinHold of %v: %v", 2*ttl, info.Holders)
			}
		}
	}
}

func TestMinHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		c := client(t, store.Connect(), nil)
		other := client(t, store.Connect(), nil)
		start := time.Now()
		lease := mustLock(t, c.Mutex("x", distlock.MinHold(10*time.Second)))
		time.Sleep(3 * time.Second)
		mustUnlock(t, lease)
		within(t, "unlock", time.Since(start), 3*time.Second, 0)
		mustUnlock(t, mustLock(t, other.Mutex("x")))
		within(t, "next holder", time.Since(start), 10*time.Second, 100*time.Millisecond)

		lease = mustLock(t, c.Mutex("x", distlock.MinHold(time.Second)))
		time.Sleep(2 * time.Second)
		mustUnlock(t, lease)
		free(t, c, "x")
	})
}

// The end of a hold, and the rest of it at the backend.

// Several locks of which one is refused are free at once: nothing ran under the others, which MinHold does not keep.
func TestMinHoldOfSeveralLocksOfWhichOneIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		c, other := client(t, store.Connect(), nil), client(t, store.Connect(), nil)
		held := mustLock(t, other.Mutex("b"))
		both := distlock.Multi(c.Mutex("a", distlock.MinHold(time.Minute)), c.Mutex("b", distlock.MinHold(time.Minute)))
		_, err := both.TryLock(t.Context())
		expect.Be(t, err, distlock.ErrHeld, "TryLock")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = both.Lock(ctx)
		expect.Be(t, err, distlock.ErrHeld, "Lock")
		mustUnlock(t, must.Get(other.Mutex("a").TryLock(t.Context()))(t))
		mustUnlock(t, held)
	})
}

// A lock that no caller got, since the observer panicked, is not kept by MinHold.
func TestMinHoldOfALockThatNobodyGot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		watch := &distlock.Observer{Granted: func(distlock.Event) { panic("observer") }}
		c, other := client(t, store.Connect(), &distlock.Options{Observer: watch}), client(t, store.Connect(), nil)
		func() {
			defer func() { _ = recover() }()
			_, _ = c.Mutex("a", distlock.MinHold(time.Minute)).TryLock(t.Context())
		}()
		synctest.Wait()
		mustUnlock(t, must.Get(other.Mutex("a").TryLock(t.Context()))(t))
	})
}
