package distlock_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
)

// A waiter that takes over from one whose attempt was refused for good has a fresh Owner, if the attempt has
// released the old one.
func TestSpentOwnerIsNotPassedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		var owners []string
		queued := make(chan struct{})
		r.acquire = func(ctx context.Context, req driver.Request, next acquirer) (driver.Grant, error) {
			if owners = append(owners, req.Owner); len(owners) == 1 {
				<-queued
				return driver.Grant{}, driver.Spent(fmt.Errorf("%w: in use", driver.ErrInvalid))
			}
			return next(ctx, req)
		}
		m := client(t, r, nil).Mutex("x")
		first := make(chan error)
		go func() {
			_, err := m.Lock(t.Context())
			first <- err
		}()
		synctest.Wait()
		second := waiter(t, t.Context(), m)
		synctest.Wait()
		close(queued)
		expect.Be(t, <-first, distlock.ErrInvalid)
		mustUnlock(t, <-second)
		if len(owners) != 2 || owners[0] == owners[1] {
			t.Errorf("Owners %q", owners)
		}
	})
}

// The place of a fresh Owner in the queue has a watch of its own: the message to it must wake the waiter.
func TestSpentOwnerHasItsWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		other := client(t, store.Connect(), nil).Mutex("x")
		lease := mustLock(t, other)
		r := &rig{Backend: store.Connect()}
		first, attempts := "", 0
		var fresh atomic.Bool // another Owner has the place
		r.acquire = func(ctx context.Context, req driver.Request, next acquirer) (driver.Grant, error) {
			first = cmp.Or(first, req.Owner)
			attempts++
			g, err := next(ctx, req)
			if attempts == 2 {
				_ = r.Backend.Release(ctx, req.Hold)
				err = driver.Spent(errNetwork)
			}
			fresh.Store(req.Owner != first)
			return g, err
		}
		got := waiter(t, t.Context(), client(t, r, nil).Mutex("x"))
		for !fresh.Load() {
			time.Sleep(time.Millisecond)
			synctest.Wait()
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		start := time.Now()
		mustUnlock(t, lease)
		mustUnlock(t, <-got)
		if d := time.Since(start); d > 0 {
			t.Errorf("the waiter was woken after %v", d)
		}
	})
}

// A downgrade that has released its Owner is a loss.
func TestDowngradeThatReleasedItsOwner(t *testing.T) {
	for what, cause := range map[string]error{"refused": driver.ErrInvalid, "unknown": errNetwork} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig()
				var readers []string
				r.acquire = func(ctx context.Context, req driver.Request, next acquirer) (driver.Grant, error) {
					if req.Mode != driver.Read {
						return next(ctx, req)
					}
					readers = append(readers, req.Owner)
					_ = r.Backend.Release(ctx, req.Hold)
					return driver.Grant{}, driver.Spent(cause)
				}
				lease := mustLock(t, client(t, r, nil).RWMutex("x"))
				if err := lease.Downgrade(t.Context()); !errors.Is(err, distlock.ErrLost) || lease.Err() == nil {
					t.Errorf("%v; the lease: %v", err, lease.Err())
				}
				if len(readers) != 1 {
					t.Errorf("%d attempts by the Owner that was released", len(readers))
				}
			})
		})
	}
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
		if err != nil {
			t.Fatal(err)
		}
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

// Unlock without a context releases.
func TestUnlockWithoutAContext(t *testing.T) {
	c := client(t, memlock.New(), nil)
	lease := mustLock(t, c.Mutex("x"))
	var none context.Context
	expect.OK(t, lease.Unlock(none))
	free(t, c, "x")
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
			if err != nil {
				t.Error(err)
			}
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
				if err != nil {
					t.Error(err)
				}
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
		if !errors.Is(err, distlock.ErrUnavailable) {
			t.Errorf("got %v; want that c was not released", err)
		}
		r.set(func(r *rig) { r.release = nil })
	})
}
