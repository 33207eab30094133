package distlock_test

import (
	"context"
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

// panics reports whether f panics, as a server of requests finds out that catches it.
func panics(f func()) (caught bool) {
	defer func() { caught = recover() != nil }()
	f()
	return false
}

// A panic of an observer continues in the call of the user's that it was called in, and leaves nothing broken: a
// call without a lease holds nothing and keeps no other from the lock, and a lease lives on.
func TestPanicInAnObserver(t *testing.T) {
	type scene struct {
		c, other *distlock.Client
		r        *rig                               // of c
		held     func(t *testing.T) *distlock.Lease // by the other
	}
	lock := func(t *testing.T, s scene) { _, _ = s.c.RWMutex("x").Lock(t.Context()) }
	waits := func(lock func(*testing.T, scene)) func(*testing.T, scene) {
		return func(t *testing.T, s scene) {
			held := s.held(t)
			defer mustUnlock(t, held)
			lock(t, s)
		}
	}
	withTimeout := func(t *testing.T, s scene) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, _ = s.c.RWMutex("x").Lock(ctx)
	}
	under := func(use func(*testing.T, *distlock.Lease)) func(*testing.T, scene) {
		return func(t *testing.T, s scene) {
			lease := mustLock(t, s.c.RWMutex("x"))
			defer func() {
				time.Sleep(10 * ttl)
				if err := lease.Err(); err != nil && err != distlock.ErrReleased {
					t.Error(err)
				}
				mustUnlock(t, lease)
			}()
			use(t, lease)
		}
	}
	for what, test := range map[string]struct {
		observer func(f func(distlock.Event)) *distlock.Observer
		run      func(*testing.T, scene)
	}{
		"Granted": {func(f func(distlock.Event)) *distlock.Observer { return &distlock.Observer{Granted: f} }, lock},
		"Granted, of several": {func(f func(distlock.Event)) *distlock.Observer { return &distlock.Observer{Granted: f} }, func(t *testing.T, s scene) {
			_, _ = distlock.Multi(s.other.Mutex("a"), s.c.RWMutex("x")).Lock(t.Context())
		}},
		"Waiting": {func(f func(distlock.Event)) *distlock.Observer { return &distlock.Observer{Waiting: f} }, waits(lock)},
		"Waiting, in a queue": {func(f func(distlock.Event)) *distlock.Observer { return &distlock.Observer{Waiting: f} }, func(t *testing.T, s scene) {
			lease := mustLock(t, s.c.RWMutex("x"))
			defer mustUnlock(t, lease)
			lock(t, s)
		}},
		"Unanswered": {func(f func(distlock.Event)) *distlock.Observer { return &distlock.Observer{Unanswered: f} }, func(t *testing.T, s scene) {
			s.r.refuse(errLogin)
			defer s.r.giveBack()
			lock(t, s)
		}},
		"HandedOff": {func(f func(distlock.Event)) *distlock.Observer { return &distlock.Observer{HandedOff: f} }, func(t *testing.T, s scene) {
			lease := mustLock(t, s.c.RWMutex("x"))
			time.AfterFunc(time.Second, func() { mustUnlock(t, lease) })
			lock(t, s)
		}},
		"GaveUp":  {func(f func(distlock.Event)) *distlock.Observer { return &distlock.Observer{GaveUp: f} }, waits(withTimeout)},
		"Refused": {func(f func(distlock.Event)) *distlock.Observer { return &distlock.Observer{Refused: f} }, waits(func(t *testing.T, s scene) { _, _ = s.c.RWMutex("x").TryLock(t.Context()) })},
		"Released": {func(f func(distlock.Event)) *distlock.Observer { return &distlock.Observer{Released: f} },
			under(func(t *testing.T, l *distlock.Lease) { _ = l.Unlock(t.Context()) })},
		"Downgraded": {func(f func(distlock.Event)) *distlock.Observer { return &distlock.Observer{Downgraded: f} },
			under(func(t *testing.T, l *distlock.Lease) { _ = l.Downgrade(t.Context()) })},
		"Renewed": {func(f func(distlock.Event)) *distlock.Observer { return &distlock.Observer{Renewed: f} },
			under(func(t *testing.T, l *distlock.Lease) { _ = l.Extend(t.Context(), 2*ttl) })},
		"Granted, of Attach": {func(f func(distlock.Event)) *distlock.Observer { return &distlock.Observer{Granted: f} }, func(t *testing.T, s scene) {
			owner := must.Get(s.held(t).Detach(t.Context()))(t)
			_, _ = s.c.Attach(t.Context(), "x", owner)
		}},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memlock.NewStore()
				var fired atomic.Bool
				r := newRig()
				r.Backend = store.Connect()
				c := client(t, r, &distlock.Options{HandoffWindow: time.Hour, Observer: test.observer(func(distlock.Event) {
					if !fired.Swap(true) {
						panic("an observer")
					}
				})})
				other := client(t, store.Connect(), nil)
				s := scene{c, other, r, func(t *testing.T) *distlock.Lease { return mustLock(t, other.RWMutex("x")) }}
				if !panics(func() { test.run(t, s) }) {
					t.Fatal("the panic was swallowed")
				}
				time.Sleep(2 * ttl)
				allFree(t, store)
				mustUnlock(t, mustLock(t, c.RWMutex("x")))
				expect.OK(t, c.Close())
			})
		})
	}
}

// A hold whose grant was reported with a panic is handed off, and the next lease ends as soon as the backend says that it
// is gone.
func TestPanicThatHandsOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fired atomic.Bool
		var lost func()
		r := newRig()
		r.acquire = func(ctx context.Context, req driver.Request, next acquirer) (driver.Grant, error) {
			time.Sleep(time.Second)
			lost = req.OnLost
			return next(ctx, req)
		}
		c := client(t, r, &distlock.Options{HandoffWindow: time.Hour, Observer: &distlock.Observer{Granted: func(distlock.Event) {
			if !fired.Swap(true) {
				panic("an observer")
			}
		}}})
		time.AfterFunc(time.Millisecond, func() {
			lease := mustLock(t, c.Mutex("x"))
			expect.Equal(t, r.acquires.Load(), 1, "attempts")
			expect.OK(t, r.Backend.Release(t.Context(), driver.Hold{Name: "x", Owner: lease.Owner(), Mode: driver.Exclusive}))
			start := time.Now()
			lost()
			<-lease.Context().Done()
			within(t, "the end of the lease", time.Since(start), 0, 0)
			_ = lease.Unlock(t.Context()) // ErrLost
		})
		if !panics(func() { mustLock(t, c.Mutex("x")) }) {
			t.Fatal("the panic was swallowed")
		}
		time.Sleep(ttl)
	})
}

// An Unlock that keeps the hold for MinHold renews it. A panic of the observer of that renewal leaves the lock to the next
// caller of this process, once MinHold is over.
func TestPanicInAnUnlockThatKeepsTheHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fired atomic.Bool
		c := client(t, memlock.New(), &distlock.Options{Observer: &distlock.Observer{Renewed: func(distlock.Event) {
			if !fired.Swap(true) {
				panic("an observer")
			}
		}}})
		const minHold = 2 * ttl
		start := time.Now()
		lease := mustLock(t, c.Mutex("x", distlock.MinHold(minHold)))
		if !panics(func() { _ = lease.Unlock(t.Context()) }) {
			t.Fatal("the panic was swallowed")
		}
		ctx, cancel := context.WithTimeout(t.Context(), 4*minHold)
		defer cancel()
		next := must.Get(c.Mutex("x").Lock(ctx))(t)
		within(t, "the next holder came", time.Since(start), minHold, time.Second)
		mustUnlock(t, next)
	})
}

// A panic of the work ends its lock.
func TestPanicOfTheWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := client(t, memlock.New(), nil)
		if !panics(func() { _ = c.Mutex("x").Do(t.Context(), func(context.Context) error { panic("work") }) }) {
			t.Error("the panic was swallowed")
		}
		free(t, c, "x")
	})
}

// An observer that takes its time ends no lease.
func TestSlowDowngraded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := client(t, memlock.New(), &distlock.Options{Observer: &distlock.Observer{Downgraded: func(distlock.Event) { time.Sleep(2 * ttl) }}})
		lease := mustLock(t, c.RWMutex("x"))
		if err := lease.Downgrade(t.Context()); err != nil || lease.Err() != nil {
			t.Errorf("downgrade %v, lease %v", err, lease.Err())
		}
		mustUnlock(t, lease)
	})
}
