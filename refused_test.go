package distlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
)

// A backend that refuses the login or a right for a while.

const refusedFor = 4 * time.Second

// refuse makes every call end with err, as the driver's contract wants it, and release and renew even with an answer that
// they must not have.
func (r *rig) refuse(err error) {
	r.set(func(r *rig) {
		r.acquire = func(context.Context, driver.Request, acquirer) (driver.Grant, error) {
			return driver.Grant{}, driver.Unsent(err)
		}
		r.renew = func(_ context.Context, holds []driver.Hold, _ renewer) []error {
			return allErrors(holds, fmt.Errorf("%w: %w", driver.ErrInvalid, err))
		}
		r.release = func(context.Context, driver.Hold, releaser) error {
			return fmt.Errorf("%w: %w", driver.ErrInvalid, err)
		}
	})
}

func (r *rig) giveBack() {
	r.set(func(r *rig) { r.acquire, r.renew, r.release = nil, nil, nil })
}

var errLogin = errors.New("the server refused the login")

// unanswered collects what the observer was told of.
type unanswered struct {
	mu  sync.Mutex
	ops []string
}

func (u *unanswered) observer() *distlock.Observer {
	return &distlock.Observer{Unanswered: func(e distlock.Event) {
		u.mu.Lock()
		defer u.mu.Unlock()
		if errors.Is(e.Err, errLogin) {
			u.ops = append(u.ops, e.Op)
		}
	}}
}

// Nothing ends for good because the backend refuses the login for four seconds, nothing is left that nobody holds, and the
// observer is told why, not each time.
func TestRefusedForAWhile(t *testing.T) {
	hold := func(t *testing.T, c, _ *distlock.Client, r *rig) {
		lease := mustLock(t, c.Mutex("x"))
		time.Sleep(8 * time.Second) // renewals are due soon
		r.refuse(errLogin)
		time.Sleep(refusedFor)
		r.giveBack()
		time.Sleep(time.Minute)
		expect.OK(t, lease.Err())
		mustUnlock(t, lease)
	}
	release := func(t *testing.T, c, _ *distlock.Client, r *rig) {
		lease := mustLock(t, c.Mutex("x"))
		r.refuse(errLogin)
		err := lease.Unlock(t.Context())
		if !errors.Is(err, distlock.ErrUnavailable) || errors.Is(err, distlock.ErrInvalid) {
			t.Errorf("Unlock: %v, want ErrUnavailable alone", err)
		}
		time.Sleep(refusedFor)
		r.giveBack()
		time.Sleep(10 * time.Second)
		free(t, c, "x")
	}
	lead := func(t *testing.T, c, _ *distlock.Client, r *rig) {
		ctx, stop := context.WithCancel(t.Context())
		terms := 0
		time.AfterFunc(refusedFor, r.giveBack)
		r.refuse(errLogin)
		err := c.Election("x").Lead(ctx, func(context.Context) error { terms++; stop(); return nil })
		if terms != 1 || !errors.Is(err, context.Canceled) {
			t.Errorf("%d terms: %v", terms, err)
		}
	}
	for what, test := range map[string]struct {
		run func(t *testing.T, c, other *distlock.Client, r *rig)
		op  string
	}{
		"acquire": {func(t *testing.T, c, _ *distlock.Client, r *rig) {
			r.refuse(errLogin)
			time.AfterFunc(refusedFor, r.giveBack)
			mustUnlock(t, mustLock(t, c.Mutex("x")))
		}, "lock"},
		"wait": {func(t *testing.T, c, other *distlock.Client, r *rig) {
			held := mustLock(t, other.Mutex("x"))
			next := waiter(t, t.Context(), c.Mutex("x"))
			r.refuse(errLogin)
			time.Sleep(11 * time.Second) // it asks again within ten
			r.giveBack()
			mustUnlock(t, held)
			mustUnlock(t, <-next)
		}, "lock"},
		"a place that is given up": {func(t *testing.T, c, other *distlock.Client, r *rig) {
			held := mustLock(t, other.Mutex("x"))
			ctx, cancel := context.WithCancel(t.Context())
			next := waiter(t, ctx, c.Mutex("x", distlock.Fair()))
			r.refuse(errLogin)
			cancel()
			<-next
			time.Sleep(refusedFor)
			r.giveBack()
			time.Sleep(10 * time.Second)
			expect.Equal(t, inspect(t, other, "x").WaiterCount, 0, "places are left")
			mustUnlock(t, held)
		}, "release"},
		"renew":   {hold, "renew"},
		"release": {release, "release"},
		"lead":    {lead, "lead"},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var told unanswered
				store := memlock.NewStore()
				r := &rig{Backend: store.Connect()}
				c := client(t, r, &distlock.Options{Observer: told.observer()})
				test.run(t, c, client(t, store.Connect(), nil), r)
				synctest.Wait()
				allFree(t, store)
				if n := len(told.ops); n == 0 || n > 8 || slices.ContainsFunc(told.ops, func(op string) bool { return op != test.op }) {
					t.Errorf("the observer was told of %v, want %s", told.ops, test.op)
				}
			})
		})
	}
}

// Who watches a wait is told at least each half minute or so that there still is no answer, and not each time.
func TestOutageIsToldAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u, r := unanswered{}, newRig()
		c := client(t, r, &distlock.Options{Observer: u.observer()})
		r.refuse(errLogin)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		lead := func(context.Context) error { return nil }
		expect.Be(t, c.Election("x").Lead(ctx, lead), context.DeadlineExceeded, "Lead")
		if n := len(u.ops); n < 110 || n > 120 {
			t.Errorf("told %d times in an hour", n)
		}
	})
}
