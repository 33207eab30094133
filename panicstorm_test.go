package distlock_test

import (
	"context"
	"math/rand/v2"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/must"
)

// Observers that panic in any of a user's calls, beside a backend that leaves some without an answer, leave no lock behind and
// no caller waiting.
func TestPanicsInAStorm(t *testing.T) {
	for range 30 {
		synctest.Test(t, func(t *testing.T) {
			store := memlock.NewStore()
			clients := []*distlock.Client{panicky(t, store, nil), panicky(t, store, withoutQueue)}
			var users sync.WaitGroup
			for range 10 {
				users.Go(func() {
					for range 15 {
						catching(func() { useSomehow(t.Context(), clients[rand.N(len(clients))]) })
					}
				})
			}
			users.Wait()
			time.Sleep(20 * time.Second)
			allFree(t, store)
			for _, c := range clients {
				for _, name := range []string{"a", "b"} {
					lockable(t, c, name)
				}
			}
		})
	}
}

// catching calls f as a server of requests does: a panic of an observer ends the request.
func catching(f func()) (caught bool) {
	defer func() {
		if p := recover(); p == "an observer" {
			caught = true
		} else if p != nil {
			panic(p)
		}
	}()
	f()
	return false
}

// panicky returns a client of a store that gives no answer now and then, whose observer panics in calls within catching.
func panicky(t *testing.T, store *memlock.Store, caps func(driver.Caps) driver.Caps) *distlock.Client {
	silent := func() bool {
		time.Sleep(rand.N(20 * time.Millisecond))
		return rand.N(10) == 0
	}
	r := &rig{Backend: store.Connect(), caps: caps}
	r.acquire = func(ctx context.Context, req driver.Request, next acquirer) (driver.Grant, error) {
		grant, err := next(ctx, req)
		if silent() {
			return driver.Grant{}, errNetwork
		}
		return grant, err
	}
	r.renew = func(ctx context.Context, holds []driver.Hold, next renewer) []error {
		if silent() {
			return allErrors(holds, errNetwork)
		}
		return next(ctx, holds)
	}
	r.release = func(ctx context.Context, h driver.Hold, next releaser) error {
		if silent() {
			return errLogin
		}
		return next(ctx, h)
	}
	f := func(distlock.Event) {
		if rand.N(8) == 0 && strings.Contains(string(debug.Stack()), "catching") {
			panic("an observer")
		}
	}
	return client(t, r, &distlock.Options{TTL: 2 * time.Second, Observer: &distlock.Observer{
		Waiting: f, GaveUp: f, Refused: f, Granted: f, HandedOff: f, Renewed: f, Unanswered: f, Lost: f, Released: f, Downgraded: f,
	}})
}

// useSomehow takes a lock in one of the ways that there are, and uses its lease.
func useSomehow(ctx context.Context, c *distlock.Client) {
	ctx, cancel := context.WithTimeout(ctx, rand.N(3*time.Second))
	defer cancel()
	name := []string{"a", "b"}[rand.N(2)]
	opts := [][]distlock.LockOption{nil, {distlock.MinHold(rand.N(3 * time.Second))}, {distlock.Reentrant()}}[rand.N(3)]
	m := c.RWMutex(name, opts...)
	take := []func(context.Context) (*distlock.Lease, error){m.Lock, m.Lock, m.TryLock, m.RLock, nil}[rand.N(5)]
	work := func(context.Context) error {
		time.Sleep(rand.N(time.Second))
		return nil
	}
	if take == nil {
		_ = distlock.Multi(c.RWMutex("a"), c.RWMutex("b").Reader()).Do(ctx, work)
		return
	}
	lease, err := take(ctx)
	if err != nil {
		return
	}
	defer func() { _ = lease.Unlock(ctx) }()
	_ = work(ctx)
	switch rand.N(4) {
	case 0:
		_ = lease.Downgrade(ctx)
	case 1:
		_ = lease.Extend(ctx, time.Second+rand.N(5*time.Second))
	case 2:
		_ = m.RDo(lease.Context(), work)
	case 3:
		owner, err := lease.Detach(ctx)
		if err != nil {
			return
		}
		if again, err := c.Attach(ctx, name, owner); err == nil {
			defer func() { _ = again.Unlock(ctx) }()
		}
	}
}

// lockable fails unless c gets the lock.
func lockable(t *testing.T, c *distlock.Client, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var lease *distlock.Lease
	var err error
	for catching(func() { lease, err = c.RWMutex(name).Lock(ctx) }) {
	}
	must.OK(t, err)
	catching(func() { _ = lease.Unlock(ctx) })
}
