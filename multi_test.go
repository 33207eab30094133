package distlock_test

import (
	"context"
	"errors"
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
		expect.Equal(t, distlock.FenceOf(lease.Context(), "w"), 0, "a fence of a lock that is not held")
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
		expect.Be(t, err, distlock.ErrLost, "Do")
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

// The same lock through two clients of one coordinator is the same lock.
func TestMultiOfOneLockTwice(t *testing.T) {
	store := memlock.NewStore()
	a, b := client(t, store.Connect(), nil), client(t, store.Connect(), nil)
	expect.Be(t, expect.Err(distlock.Multi(a.Mutex("x"), b.Mutex("x")).Lock(t.Context())), distlock.ErrInvalid, "Lock")
}

// A call under the context of a lock that was lost says nothing about another lock.
func TestCallsUnderALostLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := client(t, memlock.New(), nil)
		outer, inner, rw := mustLock(t, c.Mutex("outer")), mustLock(t, c.Mutex("inner")), mustLock(t, c.RWMutex("rw"))
		ctx := outer.Context()
		info, err := c.Inspect(t.Context(), "outer")
		if err == nil {
			err = c.ForceUnlock(t.Context(), info)
		}
		must.OK(t, err)
		<-ctx.Done()
		for what, err := range map[string]error{"extend": inner.Extend(ctx, time.Hour), "downgrade": rw.Downgrade(ctx)} {
			if errors.Is(err, distlock.ErrLost) || !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if inner.Err() != nil || rw.Err() != nil {
			t.Errorf("the leases: %v, %v", inner.Err(), rw.Err())
		}
		mustUnlock(t, inner)
		mustUnlock(t, rw)
	})
}

// The error of a release is not dropped for the loss of another lock, or for the work's own deadline.
func TestErrorsOfSeveralLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		c := client(t, r, nil)
		r.release = func(ctx context.Context, h driver.Hold, next releaser) error {
			if h.Name == "a" {
				return errNetwork
			}
			return next(ctx, h)
		}
		err := distlock.Multi(c.Mutex("a"), c.Mutex("b")).Do(t.Context(), func(ctx context.Context) error {
			info, err := c.Inspect(ctx, "b")
			if err == nil {
				err = c.ForceUnlock(ctx, info)
			}
			expect.OK(t, err)
			<-ctx.Done()
			return context.Cause(ctx)
		})
		if !errors.Is(err, distlock.ErrLost) || !errors.Is(err, distlock.ErrUnavailable) {
			t.Errorf("got %v; want the loss of b, and that a was not released", err)
		}
		r.set(func(r *rig) { r.release = nil })
		for what, lock := range map[string]interface {
			Do(context.Context, func(context.Context) error) error
		}{"one": c.Mutex("d"), "several": distlock.Multi(c.Mutex("d"), c.Mutex("e"))} {
			var cause error
			err = lock.Do(t.Context(), func(ctx context.Context) error {
				info, err := c.Inspect(ctx, "d")
				if err == nil {
					err = c.ForceUnlock(ctx, info)
				}
				expect.OK(t, err)
				<-ctx.Done()
				cause = context.Cause(ctx)
				return cause
			})
			if err != cause {
				t.Errorf("%s: got %v; want the loss once: %v", what, err, cause)
			}
		}
		r.set(func(r *rig) {
			r.release = func(ctx context.Context, _ driver.Hold, _ releaser) error {
				<-ctx.Done()
				return ctx.Err()
			}
		})
		err = c.Mutex("c").Do(t.Context(), func(context.Context) error { return context.DeadlineExceeded })
		expect.Be(t, err, distlock.ErrUnavailable)
		r.set(func(r *rig) { r.release = nil })
	})
}

// FenceOf knows locks by their names: of two locks with one name, at two backends, it gives neither fence.
func TestFenceOfTwoLocksWithOneName(t *testing.T) {
	one, two := client(t, memlock.New(), nil), client(t, memlock.New(), nil)
	lease := must.Get(distlock.Multi(one.Mutex("x"), two.Mutex("x"), two.Mutex("y")).Lock(t.Context()))(t)
	expect.Equal(t, distlock.FenceOf(lease.Context(), "x"), 0, "the fence of x at one of two backends")
	if distlock.FenceOf(lease.Context(), "y") == 0 || lease.Leases()[0].Fence() == 0 {
		t.Error("no fence where there is no doubt")
	}
	expect.OK(t, lease.Unlock(t.Context()), "Unlock")
	outer := mustLock(t, one.Mutex("z", distlock.Reentrant()))
	inner := must.Get(one.Mutex("z", distlock.Reentrant()).Lock(outer.Context()))(t)
	expect.Equal(t, distlock.FenceOf(inner.Context(), "z"), outer.Fence(), "the fence of a lock that was re-entered")
	mustUnlock(t, inner)
	mustUnlock(t, outer)
}
