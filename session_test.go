package distlock_test

import (
	"context"
	"fmt"
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

// newSession makes a rig whose holds last as long as its session, which is without end.
func newSession(store *memlock.Store) *rig {
	const endless = 24 * 365 * time.Hour
	return &rig{
		Backend: store.Connect(),
		caps:    func(caps driver.Caps) driver.Caps { caps.Session = true; return caps },
		acquire: func(ctx context.Context, req driver.Request, next acquirer) (driver.Grant, error) {
			asked := req.TTL
			req.TTL = endless
			g, err := next(ctx, req)
			g.TTL = asked
			return g, err
		},
		renew: func(ctx context.Context, holds []driver.Hold, next renewer) []error {
			for i := range holds {
				holds[i].TTL = endless
			}
			return next(ctx, holds)
		},
	}
}

// A lease that ends by itself ends for others too where the session lives on, when its
// TTL has passed and not before.
func TestEndsWhereTheSessionLivesOn(t *testing.T) {
	for what, test := range map[string]struct {
		opts []distlock.LockOption
		deaf bool // renewals have no answer
		want time.Duration
	}{
		"fixed":           {opts: []distlock.LockOption{distlock.WithoutRenewal()}, want: ttl},
		"fixed, short":    {opts: []distlock.LockOption{distlock.WithoutRenewal(), distlock.WithTTL(10 * time.Second)}, want: 10 * time.Second},
		"MaxHold":         {opts: []distlock.LockOption{distlock.MaxHold(time.Minute)}, want: time.Minute + time.Second},
		"MaxHold of less": {opts: []distlock.LockOption{distlock.MaxHold(time.Second)}, want: 2 * time.Second},
		"no answers":      {deaf: true, want: ttl},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memlock.NewStore()
				r := newSession(store)
				if test.deaf {
					r.renew = blackHole
				}
				c, other := client(t, r, nil), client(t, store.Connect(), nil)
				start := time.Now()
				lease := mustLock(t, c.Mutex("x", test.opts...))
				next := mustLock(t, other.Mutex("x"))
				slack := 100 * time.Millisecond
				if test.deaf {
					slack = ttl / 4 // of a renewal in flight
				}
				within(t, "the next holder came", time.Since(start), test.want, slack)
				expect.Be(t, lease.Err(), distlock.ErrLost, "the lease")
				expect.Be(t, lease.Unlock(t.Context()), distlock.ErrLost, "Unlock")
				time.Sleep(time.Hour)
				if next.Err() != nil {
					t.Errorf("the next holder: %v", next.Err())
				}
				mustUnlock(t, next)
				expect.Equal(t, r.releases.Load(), 1, "releases")
			})
		})
	}
}

// An Unlock after the end releases at once, and nothing is released twice.
func TestUnlockOfALostLeaseInASession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newSession(memlock.NewStore())
		c := client(t, r, nil)
		lease := mustLock(t, c.Mutex("x", distlock.WithoutRenewal()))
		<-lease.Context().Done()
		expect.Be(t, lease.Unlock(t.Context()), distlock.ErrLost, "Unlock")
		synctest.Wait()
		free(t, c, "x")
		time.Sleep(time.Minute)
		expect.Equal(t, r.releases.Load(), 1, "releases")
	})
}

// Where each hold ends by its own TTL, the end of a lease costs no call.
func TestEndsByItselfWithoutASession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		c := client(t, r, nil)
		lease := mustLock(t, c.Mutex("x", distlock.WithoutRenewal()))
		time.Sleep(time.Hour)
		expect.Equal(t, r.releases.Load(), 0, "releases")
		_ = lease.Unlock(t.Context()) // ErrLost
	})
}

// Close does not wait for the end of a lease that was lost.
func TestCloseBesideALostLeaseInASession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		other := client(t, store.Connect(), nil)
		c := must.Get(distlock.New(newSession(store), &distlock.Options{TTL: time.Hour, Margin: 10 * time.Minute}))(t)
		<-mustLock(t, c.Mutex("x", distlock.WithoutRenewal())).Context().Done()
		start := time.Now()
		if err := c.Close(); err != nil || time.Since(start) > time.Second {
			t.Errorf("Close: %v after %v", err, time.Since(start))
		}
		free(t, other, "x")
	})
}

// A release without an answer is retried for as long as the session may live.
func TestReleaseGoesOnInASession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newSession(memlock.NewStore())
		r.release = func(context.Context, driver.Hold, releaser) error { return errNetwork }
		c := client(t, r, nil)
		lease := mustLock(t, c.Mutex("x"))
		expect.Be(t, lease.Unlock(t.Context()), distlock.ErrUnavailable, "Unlock")
		time.Sleep(time.Hour)
		r.set(func(r *rig) { r.release = nil })
		time.Sleep(5 * time.Second)
		free(t, c, "x")
	})
}

// However many releases have no answer, they are not retried all at once.
func TestReleasesGoOnOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many = 500
		r := newSession(memlock.NewStore())
		c := client(t, r, nil)
		var leases []*distlock.Lease
		for i := range many {
			leases = append(leases, mustLock(t, c.Mutex(fmt.Sprint(i))))
		}
		r.set(func(r *rig) {
			r.release = func(context.Context, driver.Hold, releaser) error { return errNetwork }
		})
		for _, l := range leases {
			expect.Be(t, l.Unlock(t.Context()), distlock.ErrUnavailable, "Unlock")
		}
		time.Sleep(time.Hour)
		before := r.releases.Load()
		time.Sleep(time.Minute)
		if n := r.releases.Load() - before; n == 0 || n > 150 {
			t.Errorf("%d calls in a minute", n)
		}
		r.set(func(r *rig) { r.release = nil })
		time.Sleep(5 * time.Second)
		for i := range many {
			free(t, c, fmt.Sprint(i))
		}
	})
}

// The backend is notified which holds will not be renewed.
func TestFixedIsTold(t *testing.T) {
	r := newRig()
	var mu sync.Mutex
	fixed := map[string]bool{}
	r.acquire = func(ctx context.Context, req driver.Request, next acquirer) (driver.Grant, error) {
		mu.Lock()
		fixed[req.Name] = req.Fixed
		mu.Unlock()
		return next(ctx, req)
	}
	c := client(t, r, nil)
	leases := []*distlock.Lease{mustLock(t, c.Mutex("fixed", distlock.WithoutRenewal())), mustLock(t, c.Mutex("renewed", distlock.MaxHold(time.Hour)))}
	if !fixed["fixed"] || fixed["renewed"] {
		t.Errorf("fixed: %v", fixed)
	}
	for _, l := range leases {
		mustUnlock(t, l)
	}
}

// A lock that is unlocked before MinHold has passed is renewed until then, where it would end
// with a session that lives by renewals.
func TestMinHoldInASession(t *testing.T) {
	const minHold = 10 * ttl
	for what, opts := range map[string][]distlock.LockOption{
		"renewed": nil,
		"fixed":   {distlock.WithoutRenewal(), distlock.WithTTL(minHold)},
		"MaxHold": {distlock.MaxHold(minHold)},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memlock.NewStore()
				r := &rig{Backend: store.Connect(), caps: func(caps driver.Caps) driver.Caps { caps.Session = true; return caps }}
				c, other := client(t, r, nil), client(t, store.Connect(), nil)
				start := time.Now()
				mustUnlock(t, mustLock(t, c.Mutex("x", append(opts, distlock.MinHold(minHold))...)))
				next := mustLock(t, other.Mutex("x"))
				within(t, "the next holder came", time.Since(start), minHold, 100*time.Millisecond)
				renewed := r.renews.Load()
				time.Sleep(time.Hour)
				if n := r.renews.Load(); n > renewed || r.releases.Load() != 1 || next.Err() != nil {
					t.Errorf("afterwards: %d renewals, %d releases, the next holder %v", n-renewed, r.releases.Load(), next.Err())
				}
				mustUnlock(t, next)
			})
		})
	}
}

// Close waits for the end of MinHold where a hold ends with the session: one that was unlocked, and one that
// Close itself ends. Other locks are free before.
func TestCloseWaitsForMinHoldInASession(t *testing.T) {
	for what, unlocked := range map[string]bool{"unlocked": true, "held": false} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memlock.NewStore()
				other := client(t, store.Connect(), nil)
				r := &rig{Backend: store.Connect(), caps: func(caps driver.Caps) driver.Caps { caps.Session = true; return caps }}
				c := must.Get(distlock.New(r, nil))(t)
				start := time.Now()
				lease := mustLock(t, c.Mutex("x", distlock.MinHold(time.Hour)))
				mustLock(t, c.Mutex("y"))
				if unlocked {
					mustUnlock(t, lease)
				}
				time.Sleep(time.Minute)
				time.AfterFunc(30*time.Minute, func() {
					free(t, other, "y")
					if len(inspect(t, other, "x").Holders) != 1 || lease.Err() == nil {
						t.Errorf("after half an hour: %v", lease.Err())
					}
				})
				expect.OK(t, c.Close(), "Close")
				within(t, "closed", time.Since(start), time.Hour, time.Second)
				free(t, other, "x")
			})
		})
	}
}

// A fixed hold is not renewed after a downgrade either.
func TestDowngradeStaysFixed(t *testing.T) {
	r := newRig()
	fixed := make(chan bool, 2)
	r.acquire = func(ctx context.Context, req driver.Request, next acquirer) (driver.Grant, error) {
		fixed <- req.Fixed
		return next(ctx, req)
	}
	lease := mustLock(t, client(t, r, nil).RWMutex("x", distlock.WithoutRenewal()))
	must.OK(t, lease.Downgrade(t.Context()))
	for range 2 {
		if !<-fixed {
			t.Error("the backend was not notified")
		}
	}
	mustUnlock(t, lease)
}

// A place in the queue is not continued for another request.
func TestRoleStaysAmongEquals(t *testing.T) {
	fixed, revocable := distlock.WithoutRenewal(), distlock.Revocable(func(*distlock.Lease) {})
	for what, test := range map[string]struct {
		first, second []distlock.LockOption
		same          bool
	}{
		"equal":               {nil, nil, true},
		"equally fixed":       {[]distlock.LockOption{fixed}, []distlock.LockOption{fixed}, true},
		"renewed after fixed": {[]distlock.LockOption{fixed}, nil, false},
		"fixed after renewed": {nil, []distlock.LockOption{fixed}, false},
		"both can be asked":   {[]distlock.LockOption{revocable}, []distlock.LockOption{revocable}, true},
		"silent after asked":  {[]distlock.LockOption{revocable}, nil, false},
		"asked after silent":  {nil, []distlock.LockOption{revocable}, false},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memlock.NewStore()
				r := &rig{Backend: store.Connect(), caps: func(caps driver.Caps) driver.Caps { caps.Queueing = driver.QueueAlways; return caps }}
				c, other := client(t, r, nil), client(t, store.Connect(), nil)
				held := mustLock(t, other.Mutex("x"))
				ctx, cancel := context.WithCancel(t.Context())
				first := waiter(t, ctx, c.Mutex("x", test.first...))
				owner := inspect(t, other, "x").Waiters[0].Owner
				second := waiter(t, t.Context(), c.Mutex("x", test.second...))
				cancel()
				<-first
				synctest.Wait()
				if now := inspect(t, other, "x").Waiters; len(now) != 1 || now[0].Owner == owner != test.same {
					t.Errorf("in the queue is %+v, before it was %s", now, owner)
				}
				mustUnlock(t, held)
				mustUnlock(t, <-second)
			})
		})
	}
}
