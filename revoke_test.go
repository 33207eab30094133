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

// revocableOption returns the option Revocable, and a channel of the leases that it is called with.
func revocableOption() (distlock.LockOption, chan *distlock.Lease) {
	asked := make(chan *distlock.Lease, 8)
	return distlock.Revocable(func(l *distlock.Lease) { asked <- l }), asked
}

func inspect(t testing.TB, c *distlock.Client, name string) distlock.Info {
	t.Helper()
	info := must.Get(c.Inspect(t.Context(), name))(t)
	return info
}

// ask requests the release from all holders.
func ask(t testing.TB, c *distlock.Client, name string) {
	t.Helper()
	expect.OK(t, c.Revoke(t.Context(), inspect(t, c, name)), "Revoke")
}

func TestRevoke(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		a, b := client(t, store.Connect(), nil), client(t, store.Connect(), nil)
		option, asked := revocableOption()
		lease := mustLock(t, a.Mutex("x", option))
		for range 3 {
			ask(t, b, "x")
		}
		synctest.Wait()
		if len(asked) != 1 || <-asked != lease {
			t.Error("the holder was not notified exactly once, for its own lease")
		}
		time.Sleep(time.Hour)
		expect.OK(t, lease.Err(), "the holder lost the lock by the request")
		next := waiter(t, t.Context(), b.Mutex("x"))
		mustUnlock(t, lease)
		mustUnlock(t, <-next)
		if lease := mustLock(t, a.Mutex("x", option)); len(asked) > 0 {
			t.Errorf("a lease was notified of a request to its predecessor, %v", lease)
		} else {
			mustUnlock(t, lease)
		}
	})
}

// Revoke requests the release from the inspected holders, not from their successors.
func TestRevokeSparesSuccessors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := client(t, memlock.New(), nil)
		option, asked := revocableOption()
		m := c.Mutex("x", option)
		first := mustLock(t, m)
		info := inspect(t, c, "x")
		mustUnlock(t, first)
		second := mustLock(t, m)
		expect.Be(t, c.Revoke(t.Context(), info), distlock.ErrLost, "Revoke")
		synctest.Wait()
		if len(asked) > 0 {
			t.Error("a successor received the request")
		}
		mustUnlock(t, second)
	})
}

// speechless has no revocation.
type speechless struct{ driver.Backend }

func (b speechless) Caps() driver.Caps {
	caps := b.Backend.Caps()
	caps.Revocable = 0
	return caps
}

// skipping is a backend that turns out to be no Revoker.
type skipping struct{ *memlock.Backend }

func (skipping) Revoke(context.Context, driver.Hold) error { return driver.ErrSkip }

func TestRevokeErrors(t *testing.T) {
	store := memlock.NewStore()
	c, mute := client(t, store.Connect(), nil), client(t, speechless{store.Connect()}, nil)
	skips := client(t, skipping{store.Connect()}, nil)
	option, _ := revocableOption()
	silent := mustLock(t, c.Mutex("silent"))
	closed := must.Get(distlock.New(store.Connect(), nil))(t)
	closed.Close()
	for what, test := range map[string]struct {
		c    *distlock.Client
		info distlock.Info
		want error
	}{
		"a free lock":                  {c, distlock.Info{Name: "free"}, distlock.ErrLost},
		"who has not agreed":           {c, inspect(t, c, "silent"), distlock.ErrUnsupported},
		"a backend that can't":         {mute, inspect(t, c, "silent"), distlock.ErrUnsupported},
		"a backend that skips it":      {skips, inspect(t, c, "silent"), distlock.ErrUnsupported},
		"a free lock that can't":       {mute, distlock.Info{Name: "free"}, distlock.ErrUnsupported},
		"a client that is closed":      {closed, inspect(t, c, "silent"), distlock.ErrClosed},
		"an Owner that does not exist": {c, distlock.Info{Name: "silent", Holders: []distlock.Holder{{Owner: "none"}}}, distlock.ErrLost},
	} {
		var e *distlock.Error
		if err := test.c.Revoke(t.Context(), test.info); !errors.Is(err, test.want) || !errors.As(err, &e) || e.Op != "revoke" || e.Name == "" {
			t.Errorf("%s: %v, want %v", what, err, test.want)
		}
	}
	expect.Be(t, expect.Err(mute.Mutex("x", option).TryLock(t.Context())), distlock.ErrUnsupported, "Revocable on a backend that can't")
	mustUnlock(t, silent)
}

// All holders of a shared lock receive the request.
func TestRevokeReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := client(t, memlock.New(), nil)
		option, asked := revocableOption()
		agrees, silent := c.RWMutex("x", option), c.RWMutex("x")
		leases := []*distlock.Lease{mustRLock(t, silent), mustRLock(t, agrees), mustRLock(t, agrees)}
		expect.Be(t, c.Revoke(t.Context(), inspect(t, c, "x")), distlock.ErrUnsupported, "Revoke, when one of three has not agreed to it")
		synctest.Wait()
		if len(asked) != 2 {
			t.Errorf("%d of 2 were notified", len(asked))
		}
		for _, l := range leases {
			mustUnlock(t, l)
		}
	})
}

func mustRLock(t testing.TB, m *distlock.RWMutex) *distlock.Lease {
	t.Helper()
	lease := must.Get(m.RLock(t.Context()))(t)
	return lease
}

// A release can be requested before Lock has returned, even if the first answer was lost.
func TestRevokeBeforeLockReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		c := client(t, r, nil)
		r.acquire = func(ctx context.Context, req driver.Request, next acquirer) (driver.Grant, error) {
			g, err := next(ctx, req)
			if err == nil && r.acquires.Load() == 1 {
				r.Backend.Revoke(ctx, req.Hold)
				return g, errNetwork
			}
			return g, err
		}
		option, asked := revocableOption()
		lease := mustLock(t, c.Mutex("x", option))
		synctest.Wait()
		if len(asked) != 1 || <-asked != lease || r.acquires.Load() < 2 {
			t.Error("a revocation before Lock returned was not delivered")
		}
		mustUnlock(t, lease)
	})
}

// The context of a lease is right even if it is first used when the release is requested.
func TestRevokeBeforeMultiReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		c := client(t, r, nil)
		fences := make(chan uint64, 1)
		option := distlock.Revocable(func(l *distlock.Lease) { fences <- distlock.FenceOf(l.Context(), "a") })
		r.acquire = func(ctx context.Context, req driver.Request, next acquirer) (driver.Grant, error) {
			g, err := next(ctx, req)
			if req.Name == "b" {
				r.Backend.Revoke(ctx, req.Hold)
			}
			return g, err
		}
		lease := must.Get(distlock.Multi(c.Mutex("a"), c.Mutex("b", option)).Lock(t.Context()))(t)
		if got, want := <-fences, lease.Leases()[0].Fence(); got != want {
			t.Errorf("the context of the second lease knows fence %d of the first, want %d", got, want)
		}
		mustUnlock(t, lease.Leases()[0])
		if lease.Leases()[1].Context().Err() == nil {
			t.Error("the context of the second lease outlives the context of the first")
		}
		mustUnlock(t, lease.Leases()[1])
	})
}

// Within a span the present lease is notified. A lock whose release was requested is not handed off in this
// process, and others come first.
func TestRevokeAmongHandOffs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		c := client(t, r, &distlock.Options{HandoffWindow: time.Hour})
		option, asked := revocableOption()
		m := c.Mutex("x", option)
		first := mustLock(t, m)
		second, third := waiter(t, t.Context(), m), waiter(t, t.Context(), m)
		mustUnlock(t, first)
		present := <-second
		must.Equal(t, r.acquires.Load(), 1, "attempts for a lock that was handed off")
		info := inspect(t, c, "x")
		must.OK(t, r.Backend.Revoke(t.Context(), driver.Hold{Name: "x", Owner: info.Holders[0].Owner, Mode: distlock.Exclusive}))
		expect.Equal(t, <-asked, present, "a lease other than the current one was notified")
		mustUnlock(t, present)
		expect.Equal(t, r.releases.Load(), 1, "a lock whose release was requested was handed off")
		mustUnlock(t, <-third)
	})
}

// The release of a lease can be requested before the hand-off has reached its waiter.
func TestRevokeRacesHandOff(t *testing.T) {
	r := newRig()
	c := client(t, r, &distlock.Options{HandoffWindow: time.Hour})
	m := c.Mutex("x", distlock.Revocable(func(l *distlock.Lease) {
		if l.Context() == nil || l.Name() != "x" {
			t.Error("a lease without a context")
		}
	}))
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		defer cancel()
		for range 2000 {
			info, _ := r.Backend.Inspect(ctx, "x")
			for _, h := range info.Holders {
				r.Backend.Revoke(ctx, driver.Hold{Name: "x", Owner: h.Owner, Mode: h.Mode})
			}
		}
	})
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				if lease, err := m.Lock(ctx); err == nil {
					mustUnlock(t, lease)
				}
			}
		})
	}
	wg.Wait()
}

// Where a hand-off calls the backend, a revocable lock is released instead.
func TestRevocableIsNotRefenced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, revocable := range []bool{false, true} {
			r := &rig{Backend: memlock.New()}
			r.acquire = func(ctx context.Context, q driver.Request, next acquirer) (driver.Grant, error) {
				q.Fences = 1
				return next(ctx, q)
			}
			c := client(t, r, &distlock.Options{HandoffWindow: time.Hour})
			m := c.Mutex("x")
			if revocable {
				option, _ := revocableOption()
				m = c.Mutex("x", option)
			}
			first := mustLock(t, m)
			second := waiter(t, t.Context(), m)
			mustUnlock(t, first)
			lease := <-second
			if released := r.releases.Load() > 0; released != revocable {
				t.Errorf("revocable %v: released %v", revocable, released)
			}
			mustUnlock(t, lease)
		}
	})
}

// A lock whose release was requested goes to waiters elsewhere first.
func TestRevokedLockGoesElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		a, b := client(t, store.Connect(), &distlock.Options{HandoffWindow: time.Hour}), client(t, store.Connect(), nil)
		option, asked := revocableOption()
		m := a.Mutex("x", option)
		for range 4 { // a process that has just released yields now and then anyway
			mustLock(t, m)
			here, there := waiter(t, t.Context(), m), waiter(t, t.Context(), b.Mutex("x"))
			ask(t, b, "x")
			mustUnlock(t, <-asked)
			synctest.Wait()
			select {
			case l := <-there:
				mustUnlock(t, l)
				mustUnlock(t, <-here)
			case l := <-here:
				t.Error("a waiter of the holder's process came first")
				mustUnlock(t, l)
				mustUnlock(t, <-there)
			}
		}
	})
}

// overheard makes a client whose OnRevoke functions are caught.
func overheard(t *testing.T) (*distlock.Client, chan func()) {
	r := newRig()
	caught := make(chan func(), 8)
	r.acquire = func(ctx context.Context, req driver.Request, next acquirer) (driver.Grant, error) {
		if req.OnRevoke != nil {
			caught <- req.OnRevoke
		}
		return next(ctx, req)
	}
	return client(t, r, nil), caught
}

// A lease is notified at most once, even if the backend notifies a hold again after it was granted
// again. A lease that has ended is not notified.
func TestRevokeTellsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, caught := overheard(t)
		option, asked := revocableOption()
		lease := mustLock(t, c.RWMutex("x", option))
		(<-caught)()
		must.OK(t, lease.Downgrade(t.Context()))
		(<-caught)()
		fixed := mustLock(t, c.Mutex("fixed", option, distlock.WithoutRenewal()))
		time.Sleep(time.Hour)
		(<-caught)()
		synctest.Wait()
		if len(asked) != 1 || <-asked != lease {
			t.Error("a lease was notified twice, or after its end")
		}
		_ = fixed.Unlock(t.Context()) // ErrLost
		mustUnlock(t, lease)
	})
}

// Lock does not wait for the holder's OnRevoke function.
func TestLockReturnsWhileTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		r.acquire = func(ctx context.Context, req driver.Request, next acquirer) (driver.Grant, error) {
			req.OnRevoke()
			return next(ctx, req)
		}
		returned := make(chan struct{})
		lease := mustLock(t, client(t, r, nil).Mutex("x", distlock.Revocable(func(*distlock.Lease) { <-returned })))
		close(returned)
		mustUnlock(t, lease)
	})
}

// A lock is not handed off to a waiter with another Revocable.
func TestRevokeAmongUnequals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := client(t, newRig(), &distlock.Options{HandoffWindow: time.Hour})
		one, askedOne := revocableOption()
		two, askedTwo := revocableOption()
		first := mustLock(t, c.Mutex("x", one))
		second := waiter(t, t.Context(), c.Mutex("x", two))
		mustUnlock(t, first)
		lease := <-second
		ask(t, c, "x")
		if got := <-askedTwo; got != lease || len(askedOne) > 0 {
			t.Error("a lease that was released was notified")
		}
		mustUnlock(t, lease)
	})
}

// A downgraded hold is notified, and so is the outermost lease of a re-entered one.
func TestRevokeDowngradedAndReentered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := client(t, memlock.New(), nil)
		option, asked := revocableOption()
		rw := mustLock(t, c.RWMutex("rw", option))
		must.OK(t, rw.Downgrade(t.Context()))
		m := c.Mutex("m", option, distlock.Reentrant())
		outer := mustLock(t, m)
		inner := must.Get(m.Lock(outer.Context()))(t)
		for name, want := range map[string]*distlock.Lease{"rw": rw, "m": outer} {
			ask(t, c, name)
			expect.Equal(t, <-asked, want, name, "another lease was notified")
		}
		for _, l := range []*distlock.Lease{inner, outer, rw} {
			mustUnlock(t, l)
		}
	})
}

// A request for release is not delivered to the next holder.
func TestRevokeIsNotInherited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		c := client(t, r, nil)
		r.acquire = func(ctx context.Context, req driver.Request, next acquirer) (driver.Grant, error) {
			if g, err := next(ctx, req); r.acquires.Load() > 1 {
				return g, err
			}
			r.Backend.Revoke(ctx, req.Hold)
			<-ctx.Done()
			return driver.Grant{}, ctx.Err()
		}
		option, asked := revocableOption()
		ctx, cancel := context.WithCancel(t.Context())
		first := waiter(t, ctx, c.Mutex("x", option))
		second := waiter(t, t.Context(), c.Mutex("x"))
		cancel()
		<-first
		mustUnlock(t, <-second)
		synctest.Wait()
		if len(asked) > 0 {
			t.Error("a previous holder was notified")
		}
	})
}
