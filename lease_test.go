package distlock_test

import (
	"context"
	"errors"
	"runtime"
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

func TestDo(t *testing.T) {
	errWork := errors.New("work failed")
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		c := client(t, r, nil)
		m := c.Mutex("x")
		var seen context.Context
		err := m.Do(t.Context(), func(ctx context.Context) error {
			seen = ctx
			if distlock.Fence(ctx) == 0 || distlock.FromContext(ctx).Name() != "x" {
				t.Error("the context knows no lease")
			}
			return errWork
		})
		if err != errWork {
			t.Errorf("Do: %v, want the work's own error", err)
		}
		if !errors.Is(context.Cause(seen), distlock.ErrReleased) {
			t.Errorf("cause after Do: %v", context.Cause(seen))
		}
		free(t, c, "x")

		r.renew = blackHole
		err = m.Do(t.Context(), func(ctx context.Context) error {
			<-ctx.Done()
			return errWork
		})
		if !errors.Is(err, errWork) || !errors.Is(err, distlock.ErrLost) {
			t.Errorf("Do with a lost lease: %v, want both errors", err)
		}
		err = m.Do(t.Context(), func(ctx context.Context) error {
			<-ctx.Done()
			return nil
		})
		if !errors.Is(err, distlock.ErrLost) {
			t.Errorf("Do with a lost lease: %v, want ErrLost", err)
		}
	})
}

func TestDoEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := client(t, memlock.New(), nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := c.Mutex("x").Do(ctx, func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Do: %v", err)
		}
		free(t, c, "x")
	})
}

func TestPanicInDoReleases(t *testing.T) {
	c := client(t, memlock.New(), nil)
	func() {
		defer func() {
			if recover() != "boom" {
				t.Error("the panic was swallowed")
			}
		}()
		_ = c.Mutex("x").Do(t.Context(), func(context.Context) error { panic("boom") })
	}()
	free(t, c, "x")
}

type ctxKey struct{}

// The context of Lock bounds the wait, not the lease; its values travel along.
func TestLeaseOutlivesLocksContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := client(t, memlock.New(), nil)
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), ctxKey{}, "v"))
		lease := must.Get(c.Mutex("x").Lock(ctx))(t)
		cancel()
		time.Sleep(time.Minute)
		if lease.Err() != nil || lease.Context().Err() != nil {
			t.Error("the lease ended with the context of Lock")
		}
		if lease.Context().Value(ctxKey{}) != "v" {
			t.Error("the lease's context lacks the values of Lock's")
		}
		expect.OK(t, lease.Unlock(ctx), "Unlock with a context that has ended")
		expect.OK(t, lease.Unlock(ctx), "second Unlock")
		free(t, c, "x")
	})
}

// No Unlock returns before all contexts below the lease's have ended, also if the end is another call's.
func TestSecondUnlockFollowsTheEnd(t *testing.T) {
	lease := mustLock(t, client(t, memlock.New(), nil).Mutex("x"))
	ctx := lease.Context()
	work := make([]context.Context, 10_000)
	for i := range work {
		var stop context.CancelFunc
		work[i], stop = context.WithCancel(ctx)
		defer stop()
	}
	first := make(chan error)
	go func() { first <- lease.Unlock(context.Background()) }()
	for ctx.Err() == nil {
		runtime.Gosched()
	}
	mustUnlock(t, lease)
	for _, w := range work {
		if w.Err() == nil {
			t.Fatal("Unlock has returned before a context has ended")
		}
	}
	expect.OK(t, <-first)
}

// Unlock is retried in the background if the backend does not answer.
func TestUnlockWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		c := client(t, r, nil)
		lease := mustLock(t, c.Mutex("x"))
		r.set(func(r *rig) {
			r.release = func(ctx context.Context, _ driver.Hold, _ releaser) error {
				<-ctx.Done()
				return ctx.Err()
			}
		})
		start := time.Now()
		expect.Be(t, lease.Unlock(t.Context()), distlock.ErrUnavailable, "Unlock")
		within(t, "Unlock", time.Since(start), 0, 5*time.Second)
		r.set(func(r *rig) { r.release = nil })
		time.Sleep(10 * time.Second)
		free(t, c, "x")
	})
}

// A repeated Unlock finds nothing if only the first answer was lost. That is a success.
func TestUnlockAfterALostAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		c := client(t, r, nil)
		lease := mustLock(t, c.Mutex("x"))
		lossy := true
		r.release = func(ctx context.Context, h driver.Hold, next releaser) error {
			err := next(ctx, h)
			if lossy {
				lossy = false
				return errNetwork
			}
			return err
		}
		mustUnlock(t, lease)
	})
}

func TestReentrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		c := client(t, r, nil)
		m := c.Mutex("x", distlock.Reentrant())
		outer := mustLock(t, m)
		inner := must.Get(m.Lock(outer.Context()))(t)
		if r.acquires.Load() != 1 || inner.Fence() != outer.Fence() {
			t.Error("re-entry took a hold of its own")
		}
		innermost := must.Get(m.TryLock(inner.Context()))(t)
		mustUnlock(t, innermost)
		mustUnlock(t, inner)
		mustUnlock(t, inner) // idempotent: does not count twice
		if r.releases.Load() != 0 || outer.Err() != nil {
			t.Error("the hold ended before it was unlocked as often as locked")
		}
		expect.Be(t, expect.Err(c.Mutex("x").TryLock(t.Context())), distlock.ErrHeld, "another")
		mustUnlock(t, outer)
		free(t, c, "x")
	})
}

func TestReentryEndsWithTheHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		r.renew = blackHole
		c := client(t, r, nil)
		m := c.Mutex("x", distlock.Reentrant())
		outer := mustLock(t, m)
		inner := must.Get(m.Lock(outer.Context()))(t)
		mustUnlock(t, outer)
		if inner.Err() != nil {
			t.Error("the inner lease ended with the outer")
		}
		<-inner.Context().Done()
		if !errors.Is(inner.Err(), distlock.ErrLost) {
			t.Errorf("inner: %v, want ErrLost", inner.Err())
		}
	})
}

// Without the option, and with a context that knows no lease, the lock is held by another Owner,
// even for its own holder.
func TestNotReentrantByDefault(t *testing.T) {
	c := client(t, memlock.New(), nil)
	outer := mustLock(t, c.Mutex("x"))
	expect.Be(t, expect.Err(c.Mutex("x").TryLock(outer.Context())), distlock.ErrHeld)
	expect.Be(t, expect.Err(c.Mutex("x", distlock.Reentrant()).TryLock(t.Context())), distlock.ErrHeld)
	mustUnlock(t, outer)
}

func TestRWMutexReentry(t *testing.T) {
	c := client(t, memlock.New(), nil)
	rw := c.RWMutex("x", distlock.Reentrant())
	w := mustLock(t, rw)
	r := must.Get(rw.RLock(w.Context()))(t)
	mustUnlock(t, r)
	mustUnlock(t, w)
	r = must.Get(rw.RLock(t.Context()))(t)
	expect.Be(t, expect.Err(rw.TryLock(r.Context())), distlock.ErrHeld, "write inside read")
	mustUnlock(t, r)
}

func TestDowngrade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		c := client(t, store.Connect(), nil)
		rw := c.RWMutex("x")
		lease := mustLock(t, rw)
		before := lease.Fence()
		readers := make(chan *distlock.Lease, 3)
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				l, err := rw.RLock(t.Context())
				if err != nil {
					t.Error(err)
				}
				readers <- l
			})
		}
		synctest.Wait()
		must.OK(t, lease.Downgrade(t.Context()))
		if lease.Mode() != distlock.Read || lease.Fence() <= before {
			t.Errorf("after Downgrade: %v, fence %d after %d", lease.Mode(), lease.Fence(), before)
		}
		wg.Wait()
		expect.Be(t, expect.Err(client(t, store.Connect(), nil).RWMutex("x").TryLock(t.Context())), distlock.ErrHeld, "a writer beside readers")
		time.Sleep(time.Minute) // renewed as a reader
		mustUnlock(t, lease)
		for range 3 {
			mustUnlock(t, <-readers)
		}
		expect.Be(t, mustLockThen(t, c.Mutex("y")).Downgrade(t.Context()), distlock.ErrInvalid, "Downgrade of a mutex")
		free(t, c, "x")
	})
}

// mustLockThen locks until the test ends.
func mustLockThen(t *testing.T, m locker) *distlock.Lease {
	lease := mustLock(t, m)
	t.Cleanup(func() { _ = lease.Unlock(context.Background()) })
	return lease
}

// A downgrade without an answer may have happened or not. The lease is lost, and the backend's hold
// is released.
func TestDowngradeWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		c := client(t, r, nil)
		lease := mustLock(t, c.RWMutex("x"))
		r.set(func(r *rig) {
			r.acquire = func(ctx context.Context, req driver.Request, next acquirer) (driver.Grant, error) {
				next(ctx, req)
				return driver.Grant{}, errNetwork
			}
		})
		expect.Be(t, lease.Downgrade(t.Context()), distlock.ErrLost, "Downgrade")
		synctest.Wait() // the watchdog, whose trust ends at the same instant, may be the one that ends it
		if lease.Context().Err() == nil {
			t.Error("the lease's context has not ended")
		}
		time.Sleep(time.Second)
		free(t, c, "x")
	})
}

// A backend that has reported a hold's end may still grant a downgrade, to an Owner that it no
// longer knows. That grant must not remain.
func TestDowngradeOfALostHoldLeavesNothing(t *testing.T) {
	for _, late := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig()
			c := client(t, r, nil)
			var lost func()
			r.set(func(r *rig) {
				r.acquire = func(ctx context.Context, req driver.Request, next acquirer) (driver.Grant, error) {
					if req.Mode == driver.Write {
						lost = req.OnLost
						return next(ctx, req)
					}
					r.Backend.Release(ctx, driver.Hold{Name: req.Name, Owner: req.Owner, Mode: driver.Write})
					if !late {
						lost()
						synctest.Wait()
					}
					return next(ctx, req)
				}
			})
			lease := mustLock(t, c.RWMutex("x"))
			err := lease.Downgrade(t.Context())
			if late {
				lost()
			} else if !errors.Is(err, distlock.ErrLost) {
				t.Errorf("Downgrade: %v, want ErrLost", err)
			}
			time.Sleep(time.Second)
			if lease.Context().Err() == nil {
				t.Error("the lease's context has not ended")
			}
			_ = lease.Unlock(t.Context()) // too late to return another error
			time.Sleep(time.Second)
			free(t, c, "x")
		})
	}
}

func TestMulti(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := client(t, memlock.New(), nil), client(t, memlock.New(), nil)
		m := distlock.Multi(b.Semaphore("z", 2), a.Mutex("y"), b.RWMutex("x"), a.RWMutex("x").Reader())
		lease := must.Get(m.Lock(t.Context()))(t)
		var names []string
		for _, l := range lease.Leases() {
			names = append(names, l.Name())
		}
		if len(names) != 4 || names[0] != "x" || names[1] != "x" || names[2] != "y" || names[3] != "z" {
			t.Errorf("taken in order %v", names)
		}
		if f := distlock.FenceOf(lease.Context(), "y"); f == 0 || f != lease.Leases()[2].Fence() {
			t.Errorf("FenceOf(y) = %d", f)
		}
		if distlock.FenceOf(lease.Context(), "w") != 0 {
			t.Error("a fence of a lock that is not held")
		}
		expect.Be(t, expect.Err(m.TryLock(t.Context())), distlock.ErrHeld, "second")
		mustUnlock(t, lease)
		free(t, a, "y")
		free(t, b, "z")
	})
}

func TestMultiInOppositeOrders(t *testing.T) {
	c := client(t, memlock.New(), nil)
	x, y := c.Mutex("x"), c.Mutex("y")
	var wg sync.WaitGroup
	for i := range 8 {
		m := distlock.Multi(x, y)
		if i%2 == 0 {
			m = distlock.Multi(y, x)
		}
		wg.Go(func() {
			for range 50 {
				expect.OK(t, m.Do(t.Context(), func(context.Context) error { return nil }))
			}
		})
	}
	wg.Wait()
}

// All or nothing: when the second can't be had in time the first is released.
func TestMultiGivesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := client(t, memlock.New(), nil)
		held := mustLock(t, c.Mutex("b"))
		errPatience := errors.New("out of patience")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errPatience)
		defer cancel()
		start := time.Now()
		_, err := distlock.Multi(c.Mutex("a"), c.Mutex("b")).Lock(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, errPatience) || !errors.Is(err, distlock.ErrHeld) {
			t.Errorf("Lock: %v", err)
		}
		within(t, "gave up", time.Since(start), time.Minute, 0)
		free(t, c, "a")
		mustUnlock(t, held)
	})
}

func TestMultiEndsWhenOneIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		a, b := client(t, r, nil), client(t, memlock.New(), nil)
		err := distlock.Multi(a.Mutex("a"), b.Mutex("b")).Do(t.Context(), func(ctx context.Context) error {
			r.set(func(r *rig) { r.renew = blackHole })
			<-ctx.Done()
			return context.Cause(ctx)
		})
		if !errors.Is(err, distlock.ErrLost) {
			t.Errorf("Do: %v, want ErrLost", err)
		}
		free(t, b, "b")
	})
}

func TestMultiRefusesNonsense(t *testing.T) {
	c := client(t, memlock.New(), nil)
	for name, m := range map[string]*distlock.MultiLock{
		"none":  distlock.Multi(),
		"nil":   distlock.Multi(nil),
		"twice": distlock.Multi(c.Mutex("a"), c.Mutex("b"), c.Mutex("a")),
	} {
		expect.Be(t, expect.Err(m.Lock(t.Context())), distlock.ErrInvalid, name)
	}
}
