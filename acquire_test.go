package distlock_test

import (
	"cmp"
	"context"
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
