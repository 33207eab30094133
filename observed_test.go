package distlock_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/record"
	"github.com/distlock/distlock/internal/record/recordtest"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// observed is a connection to a store whose holds end only for those who have watched them.
func observed(store record.Store) driver.Backend {
	return record.New(store, driver.Caps{Name: "records", Floor: true, Poll: 10 * time.Millisecond})
}

// The lock of a process that died is granted to one that waits, a TTL after it came, and to none that only tries.
func TestWaitsForAnObservedEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := recordtest.NewMemory()
		const ttl = 10 * time.Second
		dead := driver.Request{Hold: driver.Hold{Name: "x", Owner: driver.NewOwner(), Mode: driver.Exclusive, TTL: ttl}, Fences: 1}
		must.Get(observed(store).Acquire(t.Context(), dead))(t)
		time.Sleep(time.Hour)
		for range 3 {
			_, err := client(t, observed(store), nil).Mutex("x").TryLock(t.Context())
			expect.Be(t, err, distlock.ErrHeld, "TryLock of a process that has just come")
			time.Sleep(time.Hour)
		}
		start := time.Now()
		lease := mustLock(t, client(t, observed(store), nil).Mutex("x"))
		within(t, "a process that waits has it", time.Since(start), ttl, ttl/50)
		mustUnlock(t, lease)
		lease = must.Get(client(t, observed(store), nil).Mutex("x").TryLock(t.Context()))(t)
		mustUnlock(t, lease)
	})
}

// What relies on the end of a hold whose process is gone is refused, and takes nothing.
func TestObservedHasNoMinHold(t *testing.T) {
	store := recordtest.NewMemory()
	c := client(t, observed(store), nil)
	_, err := c.Mutex("x", distlock.MinHold(time.Second)).TryLock(t.Context())
	expect.Be(t, err, distlock.ErrUnsupported, "MinHold")
	_, err = c.Cron(t.Context(), "x", time.Minute, func(context.Context) error { t.Error("the job ran"); return nil })
	expect.Be(t, err, distlock.ErrUnsupported, "Cron")
	if err == nil || !strings.Contains(err.Error(), "wait for the lock for longer than its TTL") {
		t.Errorf("the error does not say what to do: %v", err)
	}
	free(t, c, "x")
}

// A lease that ended by itself is released, since its hold does not end for those who come later.
func TestReleasesWhatEndsForNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := recordtest.NewMemory()
		c := client(t, observed(store), nil)
		lease := mustLock(t, c.Mutex("x", distlock.WithoutRenewal()))
		<-lease.Context().Done()
		time.Sleep(time.Minute)
		other := client(t, observed(store), nil)
		mustUnlock(t, must.Get(other.Mutex("x").TryLock(t.Context()))(t))
	})
}

// A release that has no answer for longer than the TTL goes on.
func TestReleaseGoesOnWhereHoldsEndForNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := recordtest.NewMemory()
		r := &observedRig{Backend: observed(store)}
		c := client(t, r, nil)
		lease := mustLock(t, c.Mutex("x"))
		r.silent = time.Now().Add(time.Hour)
		expect.Be(t, lease.Unlock(t.Context()), distlock.ErrUnavailable, "Unlock")
		time.Sleep(time.Hour + time.Minute)
		mustUnlock(t, must.Get(client(t, observed(store), nil).Mutex("x").TryLock(t.Context()))(t))
	})
}

// observedRig gives releases no answer for a while.
type observedRig struct {
	driver.Backend
	silent time.Time
}

func (r *observedRig) Release(ctx context.Context, h driver.Hold) error {
	if time.Now().Before(r.silent) {
		<-ctx.Done()
		return ctx.Err()
	}
	return r.Backend.Release(ctx, h)
}
