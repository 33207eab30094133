package distlock_test

import (
	"context"
	"errors"
	"runtime"
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
		expect.Be(t, context.Cause(seen), distlock.ErrReleased, "cause after Do")
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
		expect.Be(t, err, distlock.ErrLost, "Do with a lost lease")
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
		expect.Be(t, err, context.DeadlineExceeded, "Do")
		free(t, c, "x")
	})
}

func TestPanicInDoReleases(t *testing.T) {
	c := client(t, memlock.New(), nil)
	func() {
		defer func() {
			expect.Equal(t, recover(), "boom", "the panic was swallowed")
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
		expect.Equal(t, lease.Context().Value(ctxKey{}), "v", "the lease's context lacks the values of Lock's")
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
		expect.Be(t, inner.Err(), distlock.ErrLost, "inner")
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

// mustLockThen locks until the test ends.
func mustLockThen(t *testing.T, m locker) *distlock.Lease {
	lease := mustLock(t, m)
	t.Cleanup(func() { _ = lease.Unlock(context.Background()) })
	return lease
}

// Unlock without a context releases.
func TestUnlockWithoutAContext(t *testing.T) {
	c := client(t, memlock.New(), nil)
	lease := mustLock(t, c.Mutex("x"))
	var none context.Context
	expect.OK(t, lease.Unlock(none))
	free(t, c, "x")
}
