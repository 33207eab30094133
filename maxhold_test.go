package distlock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/must"
)

// MaxHold counts for each lease, even if they share one hold at the backend.
func TestMaxHoldOfEachLease(t *testing.T) {
	for what, test := range map[string]struct {
		opts     *distlock.Options
		lock     []distlock.LockOption
		max      time.Duration
		work     time.Duration // under each lease
		acquires int64         // 0: any number
	}{
		"of the client":  {opts: &distlock.Options{MaxHold: 10 * time.Second}, max: 10 * time.Second, work: 2 * time.Second, acquires: 1},
		"of the lock":    {opts: &distlock.Options{}, lock: []distlock.LockOption{distlock.MaxHold(10 * time.Second)}, max: 10 * time.Second, work: 2 * time.Second, acquires: 1},
		"short":          {opts: &distlock.Options{MaxHold: 4 * time.Second}, max: 4 * time.Second, work: 2 * time.Second, acquires: 1},
		"renewed":        {opts: &distlock.Options{MaxHold: 20 * time.Second}, max: 20 * time.Second, work: 9 * time.Second, acquires: 1},
		"beyond the TTL": {opts: &distlock.Options{MaxHold: time.Minute}, max: time.Minute, work: 50 * time.Second, acquires: 1},
		"short for long": {opts: &distlock.Options{MaxHold: 4 * time.Second}, max: 4 * time.Second, work: 3 * time.Second},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memlock.NewStore()
				r := &rig{Backend: store.Connect(), caps: withoutQueue}
				test.opts.HandoffWindow = time.Hour
				c, other := client(t, r, test.opts), client(t, store.Connect(), nil)
				m := c.Mutex("x", test.lock...)
				lease := mustLock(t, m)
				for range 10 {
					next := waiter(t, t.Context(), m)
					time.Sleep(test.work)
					mustUnlock(t, lease)
					lease = <-next
				}
				if n := r.acquires.Load(); test.acquires != 0 && n != test.acquires {
					t.Errorf("%d acquires, want %d: the hold was not handed off", n, test.acquires)
				}
				start := time.Now()
				<-lease.Context().Done()
				within(t, "the last lease ended", time.Since(start), test.max, 0)
				if err := lease.Err(); !errors.Is(err, distlock.ErrLost) || !strings.Contains(err.Error(), "MaxHold") {
					t.Errorf("Err: %v, want ErrLost by MaxHold", err)
				}
				mustUnlock(t, mustLock(t, other.Mutex("x")))
				within(t, "free for others", time.Since(start), test.max, ttl)
			})
		})
	}
}

// The client's MaxHold is the default for every kind of lock. A lock's own MaxHold replaces it.
func TestMaxHoldOfTheClient(t *testing.T) {
	for what, take := range map[string]func(context.Context, *distlock.Client, ...distlock.LockOption) (*distlock.Lease, error){
		"mutex": func(ctx context.Context, c *distlock.Client, o ...distlock.LockOption) (*distlock.Lease, error) {
			return c.Mutex("x", o...).Lock(ctx)
		},
		"try": func(ctx context.Context, c *distlock.Client, o ...distlock.LockOption) (*distlock.Lease, error) {
			return c.Mutex("x", o...).TryLock(ctx)
		},
		"fair": func(ctx context.Context, c *distlock.Client, o ...distlock.LockOption) (*distlock.Lease, error) {
			return c.Mutex("x", append(o, distlock.Fair())...).Lock(ctx)
		},
		"read": func(ctx context.Context, c *distlock.Client, o ...distlock.LockOption) (*distlock.Lease, error) {
			return c.RWMutex("x", o...).RLock(ctx)
		},
		"permit": func(ctx context.Context, c *distlock.Client, o ...distlock.LockOption) (*distlock.Lease, error) {
			return c.Semaphore("x", 2, o...).Acquire(ctx)
		},
		"multi": func(ctx context.Context, c *distlock.Client, o ...distlock.LockOption) (*distlock.Lease, error) {
			all, err := distlock.Multi(c.Mutex("x", o...), c.Mutex("y", o...)).TryLock(ctx)
			if err != nil {
				return nil, err
			}
			return all.Leases()[1], nil
		},
		"downgraded": func(ctx context.Context, c *distlock.Client, o ...distlock.LockOption) (*distlock.Lease, error) {
			lease, err := c.RWMutex("x", o...).Lock(ctx)
			if err != nil {
				return nil, err
			}
			return lease, lease.Downgrade(ctx)
		},
	} {
		for max, opts := range map[time.Duration][]distlock.LockOption{
			time.Minute: nil,
			time.Hour:   {distlock.MaxHold(time.Hour)},
			time.Second: {distlock.MaxHold(time.Second)},
		} {
			t.Run(what+" "+max.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := client(t, memlock.New(), &distlock.Options{MaxHold: time.Minute})
					start := time.Now()
					lease := must.Get(take(t.Context(), c, opts...))(t)
					<-lease.Context().Done()
					within(t, "end of hold", time.Since(start), max, 0)
				})
			})
		}
	}
}

func TestBadMaxHoldOfTheClient(t *testing.T) {
	for _, d := range []time.Duration{-1, driver.MaxTTL + 1} {
		if _, err := distlock.New(memlock.New(), &distlock.Options{MaxHold: d}); !errors.Is(err, distlock.ErrInvalid) || !strings.Contains(err.Error(), "MaxHold") {
			t.Errorf("MaxHold %v: %v, want ErrInvalid that names MaxHold", d, err)
		}
	}
	c := client(t, memlock.New(), &distlock.Options{MaxHold: time.Minute})
	if _, err := c.Mutex("x", distlock.MinHold(time.Hour)).Lock(t.Context()); !errors.Is(err, distlock.ErrInvalid) || !strings.Contains(err.Error(), "MaxHold 1m0s") {
		t.Errorf("MinHold of more than the client's MaxHold: %v, want ErrInvalid that says so", err)
	}
}

// A lease that MaxHold has ended is not handed off. An Unlock at that very moment hands it off to a
// waiter, whose MaxHold begins then.
func TestUnlockWhenMaxHoldEnds(t *testing.T) {
	const max = 10 * time.Second
	synctest.Test(t, func(t *testing.T) {
		c := client(t, newRig(), &distlock.Options{MaxHold: max, HandoffWindow: time.Hour})
		for range 50 {
			lease := mustLock(t, c.Mutex("x"))
			next := waiter(t, t.Context(), c.Mutex("x"))
			time.AfterFunc(max, func() { _ = lease.Unlock(context.Background()) }) // ErrLost, or not
			second := <-next
			start := time.Now()
			<-second.Context().Done()
			within(t, "the second lease ended", time.Since(start), max, 0)
			mustUnlock(t, mustLock(t, c.Mutex("x")))
		}
	})
}

// MaxHold ends an extended lease for others too, at most a TTL later.
func TestMaxHoldOfAnExtendedLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		c, other := client(t, store.Connect(), nil), client(t, store.Connect(), nil)
		start := time.Now()
		lease := mustLock(t, c.Mutex("x", distlock.MaxHold(time.Hour)))
		must.OK(t, lease.Extend(t.Context(), 50*time.Minute))
		next := mustLock(t, other.Mutex("x"))
		within(t, "the next holder came", time.Since(start), time.Hour, ttl)
		mustUnlock(t, next)
	})
}
