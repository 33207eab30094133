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

// A downgrade requests the TTL of the lock, which may be less than the remaining time.
func TestDowngradeKeepsAnExtension(t *testing.T) {
	for what, opts := range map[string][]distlock.LockOption{"renewed": nil, "fixed": {distlock.WithoutRenewal()}} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig()
				c := client(t, r, nil)
				lease := mustLock(t, c.RWMutex("x", opts...))
				must.OK(t, lease.Extend(t.Context(), time.Hour))
				extended := lease.Deadline()
				must.OK(t, lease.Downgrade(t.Context()))
				if d := lease.Deadline(); d.Before(extended) {
					t.Errorf("the deadline is in %v, was in %v before the downgrade", time.Until(d), time.Until(extended))
				}
				r.set(func(r *rig) { r.renew = blackHole })
				time.Sleep(59 * time.Minute)
				expect.OK(t, lease.Err(), "lost")
				r.set(func(r *rig) { r.renew = nil })
				mustUnlock(t, lease)
			})
		})
	}
}

// A downgrade that is granted after the deadline has come too late, also if the loss has not been
// reported yet: the watchdog reports the loss of another lease first.
func TestDowngradeAfterTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		goOn := make(chan struct{})
		r := newRig()
		c := client(t, r, &distlock.Options{Observer: &distlock.Observer{Lost: func(e distlock.Event) {
			if e.Name == "another" {
				<-goOn
			}
		}}})
		mustLock(t, c.Mutex("another", distlock.WithoutRenewal()))
		lease := mustLock(t, c.RWMutex("x", distlock.WithoutRenewal()))
		r.set(func(r *rig) {
			r.acquire = func(_ context.Context, req driver.Request, next acquirer) (driver.Grant, error) {
				time.Sleep(time.Until(lease.Deadline()) + 1)
				return next(context.Background(), req)
			}
		})
		if err := lease.Downgrade(t.Context()); !errors.Is(err, distlock.ErrLost) {
			t.Errorf("Downgrade: %v, and the lease: %v", err, lease.Err())
		}
		synctest.Wait()
		free(t, c, "x")
		close(goOn)
	})
}

// An Unlock beside a downgrade without an answer ends the downgrade's call, and leaves nothing
// at the backend.
func TestUnlockDuringASilentDowngrade(t *testing.T) {
	for what, lands := range map[string]bool{"lost": false, "landed": true} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &tracked{rig: newRig(), t: t, in: map[string]string{}}
				c := client(t, b, nil)
				lease := mustLock(t, c.RWMutex("x"))
				b.set(func(r *rig) {
					r.acquire = func(ctx context.Context, req driver.Request, next acquirer) (driver.Grant, error) {
						if lands {
							next(ctx, req)
						}
						<-ctx.Done()
						return driver.Grant{}, ctx.Err()
					}
				})
				downgraded := make(chan error, 1)
				go func() { downgraded <- lease.Downgrade(t.Context()) }()
				synctest.Wait()
				start := time.Now()
				mustUnlock(t, lease)
				if d := time.Since(start); d > time.Second {
					t.Errorf("Unlock took %v", d)
				}
				free(t, c, "x")
				if err := <-downgraded; !errors.Is(err, distlock.ErrLost) && !errors.Is(err, distlock.ErrReleased) {
					t.Errorf("Downgrade: %v", err)
				}
				time.Sleep(time.Minute)
				free(t, c, "x")
			})
		})
	}
}

// A downgrade without an answer is retried after CallTimeout, and the lease lives on.
func TestDowngradeIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newRig()
		c := client(t, b, nil)
		lease := mustLock(t, c.RWMutex("x"))
		tries := 0
		b.set(func(r *rig) {
			r.acquire = func(ctx context.Context, req driver.Request, next acquirer) (driver.Grant, error) {
				if tries++; tries == 1 {
					<-ctx.Done()
					return driver.Grant{}, ctx.Err()
				}
				return next(ctx, req)
			}
		})
		start := time.Now()
		if err := lease.Downgrade(t.Context()); err != nil || tries != 2 || time.Since(start) > 6*time.Second {
			t.Errorf("%v after %d tries in %v", err, tries, time.Since(start))
		}
		mustUnlock(t, lease)
	})
}

// If a backend continues a call after its context has ended, the release waits for that call.
func TestUnlockDuringACallThatDoesNotEnd(t *testing.T) {
	scenes := map[string]func(*distlock.Lease) error{
		"downgrade": func(l *distlock.Lease) error { return l.Downgrade(context.Background()) },
		"extend":    func(l *distlock.Lease) error { return l.Extend(context.Background(), time.Hour) },
	}
	for what, call := range scenes {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &tracked{rig: newRig(), t: t, in: map[string]string{}}
				c := client(t, b, nil)
				lease := mustLock(t, c.RWMutex("x"))
				b.set(func(r *rig) {
					r.acquire = func(ctx context.Context, req driver.Request, next acquirer) (driver.Grant, error) {
						time.Sleep(20 * time.Second)
						return next(context.Background(), req)
					}
					r.renew = func(ctx context.Context, holds []driver.Hold, next renewer) []error {
						time.Sleep(20 * time.Second)
						return next(context.Background(), holds)
					}
				})
				done := make(chan error, 1)
				go func() { done <- call(lease) }()
				synctest.Wait()
				expect.Be(t, lease.Unlock(t.Context()), distlock.ErrUnavailable, "Unlock")
				<-done
				time.Sleep(time.Second)
				free(t, c, "x")
			})
		})
	}
}

// A downgrade that lands after the hold was lost takes the lock anew. Even without an answer it is
// released: a session would keep it for ever.
func TestSilentDowngradeAfterALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		r := newSession(store)
		acquire := r.acquire
		var lost func()
		r.acquire = func(ctx context.Context, req driver.Request, next acquirer) (driver.Grant, error) {
			lost = req.OnLost
			return acquire(ctx, req, next)
		}
		c := client(t, r, nil)
		lease := mustLock(t, c.RWMutex("x"))
		onLost, writer := lost, driver.Hold{Name: "x", Owner: lease.Owner(), Mode: driver.Write}
		r.set(func(r *rig) {
			r.acquire = func(ctx context.Context, req driver.Request, next acquirer) (driver.Grant, error) {
				r.Backend.Release(ctx, writer)
				onLost()
				time.Sleep(time.Second)
				acquire(ctx, req, next)
				<-ctx.Done()
				return driver.Grant{}, ctx.Err()
			}
		})
		expect.Be(t, lease.Downgrade(t.Context()), distlock.ErrLost, "Downgrade")
		_ = lease.Unlock(t.Context()) // ErrLost
		time.Sleep(time.Minute)
		free(t, c, "x")
	})
}

// A hold that was broken during a downgrade is lost, even if the next writer has released the lock
// before the retry.
func TestDowngradeOfABrokenHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		r := &rig{Backend: store.Connect()}
		c, other := client(t, r, nil), client(t, store.Connect(), nil)
		lease := mustLock(t, c.RWMutex("x"))
		r.set(func(r *rig) {
			r.acquire = func(ctx context.Context, req driver.Request, next acquirer) (driver.Grant, error) {
				r.set(func(r *rig) { r.acquire = nil })
				info, err := other.Inspect(ctx, "x")
				expect.OK(t, err)
				expect.OK(t, other.ForceUnlock(ctx, info))
				writer := mustLock(t, other.RWMutex("x"))
				defer mustUnlock(t, writer)
				return next(ctx, req)
			}
		})
		err := lease.Downgrade(t.Context())
		if e := (*distlock.Error)(nil); !errors.As(err, &e) || e.Kind != distlock.ErrLost {
			t.Errorf("Downgrade: %v, want ErrLost", err)
		}
		expect.Be(t, lease.Err(), distlock.ErrLost, "the lease")
		time.Sleep(time.Second)
		free(t, other, "x")
	})
}

// A downgrade that may have landed leaves no writer, also if the next try is refused for good.
func TestDowngradeWithoutAnswerThenInvalid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newRig()
		c := client(t, b, nil)
		lease := mustLock(t, c.RWMutex("x"))
		tries := 0
		b.set(func(r *rig) {
			r.acquire = func(ctx context.Context, req driver.Request, next acquirer) (driver.Grant, error) {
				if tries++; tries > 1 {
					return driver.Grant{}, driver.ErrInvalid
				}
				next(ctx, req)
				return driver.Grant{}, errNetwork
			}
		})
		if err := lease.Downgrade(t.Context()); !errors.Is(err, distlock.ErrLost) || !errors.Is(lease.Err(), distlock.ErrLost) {
			t.Errorf("Downgrade: %v, and the lease: %v; others may read beside it", err, lease.Err())
		}
		b.set(func(r *rig) { r.acquire = nil })
		synctest.Wait()
		free(t, c, "x")
	})
}

func TestDowngrade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		c := client(t, store.Connect(), nil)
		rw := c.RWMutex("x")
		lease := mustLock(t, rw)
		before := lease.Fence()
		readers := make(chan *distlock.Lease, 3)
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				l, err := rw.RLock(t.Context())
				expect.OK(t, err)
				readers <- l
			})
		}
		synctest.Wait()
		must.OK(t, lease.Downgrade(t.Context()))
		if lease.Mode() != distlock.Read || lease.Fence() <= before {
			t.Errorf("after Downgrade: %v, fence %d after %d", lease.Mode(), lease.Fence(), before)
		}
		wg.Wait()
		expect.Be(t, expect.Err(client(t, store.Connect(), nil).RWMutex("x").TryLock(t.Context())), distlock.ErrHeld, "a writer beside readers")
		time.Sleep(time.Minute) // renewed as a reader
		mustUnlock(t, lease)
		for range 3 {
			mustUnlock(t, <-readers)
		}
		expect.Be(t, mustLockThen(t, c.Mutex("y")).Downgrade(t.Context()), distlock.ErrInvalid, "Downgrade of a mutex")
		free(t, c, "x")
	})
}

// A downgrade without an answer may have happened or not. The lease is lost, and the backend's hold
// is released.
func TestDowngradeWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		c := client(t, r, nil)
		lease := mustLock(t, c.RWMutex("x"))
		r.set(func(r *rig) {
			r.acquire = func(ctx context.Context, req driver.Request, next acquirer) (driver.Grant, error) {
				next(ctx, req)
				return driver.Grant{}, errNetwork
			}
		})
		expect.Be(t, lease.Downgrade(t.Context()), distlock.ErrLost, "Downgrade")
		synctest.Wait() // the watchdog, whose trust ends at the same instant, may be the one that ends it
		if lease.Context().Err() == nil {
			t.Error("the lease's context has not ended")
		}
		time.Sleep(time.Second)
		free(t, c, "x")
	})
}

// A backend that has reported a hold's end may still grant a downgrade, to an Owner that it no
// longer knows. That grant must not remain.
func TestDowngradeOfALostHoldLeavesNothing(t *testing.T) {
	for _, late := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig()
			c := client(t, r, nil)
			var lost func()
			r.set(func(r *rig) {
				r.acquire = func(ctx context.Context, req driver.Request, next acquirer) (driver.Grant, error) {
					if req.Mode == driver.Write {
						lost = req.OnLost
						return next(ctx, req)
					}
					r.Backend.Release(ctx, driver.Hold{Name: req.Name, Owner: req.Owner, Mode: driver.Write})
					if !late {
						lost()
						synctest.Wait()
					}
					return next(ctx, req)
				}
			})
			lease := mustLock(t, c.RWMutex("x"))
			err := lease.Downgrade(t.Context())
			if late {
				lost()
			} else if !errors.Is(err, distlock.ErrLost) {
				t.Errorf("Downgrade: %v, want ErrLost", err)
			}
			time.Sleep(time.Second)
			if lease.Context().Err() == nil {
				t.Error("the lease's context has not ended")
			}
			for range 2 {
				_ = lease.Unlock(t.Context()) // too late to return another error
				time.Sleep(time.Second)
				expect.Equal(t, r.releases.Load(), 1, "releases")
			}
			free(t, c, "x")
		})
	}
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
				expect.Equal(t, len(readers), 1, "attempts by the Owner that was released")
			})
		})
	}
}
