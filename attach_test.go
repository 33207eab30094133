package distlock_test

import (
	"context"
	"errors"
	"strings"
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

// A hold that was kept for MinHold and is attached again lives on when MinHold is over.
func TestAttachOfAKeptHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := client(t, memlock.New(), nil)
		lease := mustLock(t, c.Mutex("x", distlock.MinHold(2*ttl)))
		mustUnlock(t, lease)
		time.Sleep(ttl)
		again := must.Get(c.Attach(t.Context(), "x", lease.Owner()))(t)
		time.Sleep(4 * ttl)
		expect.OK(t, again.Err())
		mustUnlock(t, again)
		free(t, c, "x")
	})
}

// pairOfClients makes two clients of one store, the first with a rig.
func pairOfClients(t *testing.T) (a, b *distlock.Client, r *rig) {
	store := memlock.NewStore()
	r = &rig{Backend: store.Connect(), caps: withoutQueue}
	return client(t, r, nil), client(t, store.Connect(), nil), r
}

func mustDetach(t *testing.T, l *distlock.Lease) (owner string) {
	t.Helper()
	owner, err := l.Detach(t.Context())
	if err != nil || owner == "" {
		t.Fatalf("Detach: %q, %v", owner, err)
	}
	return owner
}

// A hold passes from one client to another, in every mode, under its owner and its fence.
func TestDetachThenAttach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, _ := pairOfClients(t)
		for name, lock := range map[string]func(*distlock.Client) (*distlock.Lease, error){
			"mutex":  func(c *distlock.Client) (*distlock.Lease, error) { return c.Mutex("mutex").TryLock(t.Context()) },
			"writer": func(c *distlock.Client) (*distlock.Lease, error) { return c.RWMutex("writer").TryLock(t.Context()) },
			"reader": func(c *distlock.Client) (*distlock.Lease, error) { return c.RWMutex("reader").TryRLock(t.Context()) },
			"semaphore": func(c *distlock.Client) (*distlock.Lease, error) {
				return c.Semaphore("semaphore", 3).TryAcquire(t.Context())
			},
		} {
			taken, err := lock(a)
			if err != nil {
				t.Fatal(name, err)
			}
			owner := mustDetach(t, taken)
			if !errors.Is(context.Cause(taken.Context()), distlock.ErrReleased) || !errors.Is(taken.Err(), distlock.ErrReleased) {
				t.Errorf("%s: the detached lease: %v", name, taken.Err())
			}
			mustUnlock(t, taken) // it does nothing
			lease, err := b.Attach(t.Context(), name, owner)
			if err != nil {
				t.Fatal(name, err)
			}
			if lease.Owner() != owner || lease.Fence() != taken.Fence() || lease.Mode() != taken.Mode() || lease.Fence() == 0 {
				t.Errorf("%s: attached %v with fence %d, want %v with %d", name, lease.Mode(), lease.Fence(), taken.Mode(), taken.Fence())
			}
			time.Sleep(10 * distlock.DefaultTTL)
			expect.OK(t, lease.Err(), name, "it was not renewed")
			mustUnlock(t, lease)
			free(t, a, name)
		}
	})
}

// A hold that is not attached ends with its TTL, and waiters of the process that detached get it then.
func TestDetachedHoldsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, _ := pairOfClients(t)
		taken := mustLock(t, a.Mutex("x"))
		began := time.Now()
		owner := mustDetach(t, taken)
		next := mustLock(t, a.Mutex("x"))
		within(t, "the next holder", time.Since(began), distlock.DefaultTTL, 2*time.Second)
		if next.Fence() <= taken.Fence() {
			t.Errorf("fence %d after %d", next.Fence(), taken.Fence())
		}
		if l, err := b.Attach(t.Context(), "x", owner); !errors.Is(err, distlock.ErrLost) || l != nil {
			t.Errorf("Attach of an ended hold: %v", err)
		}
		expect.OK(t, next.Err())
		mustUnlock(t, next)
	})
}

// Nothing is trusted without an answer, and a hold that is not ours is left as it is.
func TestAttachWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, r := pairOfClients(t)
		taken := mustLock(t, b.Mutex("x"))
		r.renew = blackHole
		l, err := a.Attach(t.Context(), "x", taken.Owner())
		if !errors.Is(err, distlock.ErrUnavailable) || l != nil {
			t.Errorf("got %v", err)
		}
		if strings.Contains(err.Error(), taken.Owner()) {
			t.Errorf("the error shows the owner: %v", err)
		}
		if r.releases.Load() > 0 || taken.Err() != nil {
			t.Error("the hold was touched")
		}
		r.set(func(r *rig) { r.renew = nil })
		expect.OK(t, expect.Err(a.Attach(t.Context(), "x", taken.Owner())), "once more")
	})
}

// An answer that is as late as the TTL proves nothing.
func TestAttachWithALateAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, r := pairOfClients(t)
		taken := mustLock(t, b.Mutex("x"))
		r.renew = func(_ context.Context, holds []driver.Hold, next renewer) []error {
			answers := next(context.WithoutCancel(t.Context()), holds)
			time.Sleep(distlock.DefaultTTL)
			return answers
		}
		if l, err := a.Attach(t.Context(), "x", taken.Owner()); !errors.Is(err, distlock.ErrUnavailable) || l != nil {
			t.Errorf("got %v", err)
		}
	})
}

// If two have attached one hold, the first Unlock ends it for both, and the other one harms no
// successor.
func TestAttachedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, _ := pairOfClients(t)
		taken := mustLock(t, a.Mutex("x"))
		second := must.Get(b.Attach(t.Context(), "x", taken.Owner()))(t)
		mustUnlock(t, taken)
		next := mustLock(t, a.Mutex("x"))
		if next.Fence() <= second.Fence() {
			t.Errorf("fence %d after %d", next.Fence(), second.Fence())
		}
		<-second.Context().Done()
		expect.Be(t, second.Unlock(t.Context()), distlock.ErrLost, "Unlock of a hold that is gone")
		time.Sleep(time.Minute)
		expect.OK(t, next.Err(), "the successor")
	})
}

// A client has one lease on a hold, however many calls attach it at once.
func TestAttachByTheSameClient(t *testing.T) {
	a, b, _ := pairOfClients(t)
	taken := mustLock(t, a.Mutex("x"))
	expect.Be(t, expect.Err(a.Attach(t.Context(), "x", taken.Owner())), distlock.ErrInvalid, "by the holder")
	var wg sync.WaitGroup
	results := make(chan error, 10)
	for range cap(results) {
		wg.Go(func() {
			_, err := b.Attach(t.Context(), "x", taken.Owner())
			results <- err
		})
	}
	wg.Wait()
	attached := 0
	for range cap(results) {
		switch err := <-results; {
		case err == nil:
			attached++
		case !errors.Is(err, distlock.ErrInvalid):
			t.Error(err)
		}
	}
	expect.Equal(t, attached, 1, "leases on one hold")
}

func TestAttachAndDetachRefuse(t *testing.T) {
	a, b, _ := pairOfClients(t)
	m := a.Mutex("x", distlock.Reentrant())
	lease := mustLock(t, m)
	inner := must.Get(m.Lock(lease.Context()))(t)
	if _, err := lease.Detach(t.Context()); !errors.Is(err, distlock.ErrInvalid) || lease.Err() != nil || inner.Err() != nil {
		t.Errorf("Detach of a re-entered lock: %v", err)
	}
	mustUnlock(t, inner)
	for want, attach := range map[error]func() (*distlock.Lease, error){
		distlock.ErrInvalid: func() (*distlock.Lease, error) { return b.Attach(t.Context(), "x", "") },
		distlock.ErrLost:    func() (*distlock.Lease, error) { return b.Attach(t.Context(), "x", driver.NewOwner()) },
		distlock.ErrUnsupported: func() (*distlock.Lease, error) {
			return b.Attach(t.Context(), "x", lease.Owner(), distlock.Revocable(func(*distlock.Lease) {}))
		},
		context.Canceled: func() (*distlock.Lease, error) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			return b.Attach(ctx, "x", lease.Owner())
		},
	} {
		if l, err := attach(); !errors.Is(err, want) || l != nil {
			t.Errorf("got %v, want %v", err, want)
		}
	}
	mustUnlock(t, lease)
	expect.Be(t, expect.Err(lease.Detach(t.Context())), distlock.ErrReleased, "Detach after Unlock")
}

// Where a hold ends with its connection, nothing is detached.
func TestAttachNeedsDetachedHolds(t *testing.T) {
	r := newRig()
	r.caps = func(caps driver.Caps) driver.Caps { caps.Detached = false; return caps }
	c := client(t, r, nil)
	lease := mustLock(t, c.Mutex("x"))
	if _, err := lease.Detach(t.Context()); !errors.Is(err, distlock.ErrUnsupported) || lease.Err() != nil {
		t.Errorf("Detach: %v", err)
	}
	_, err := c.Attach(t.Context(), "x", lease.Owner())
	if !errors.Is(err, distlock.ErrUnsupported) || !strings.Contains(err.Error(), "ends with the connection") {
		t.Errorf("Attach: %v", err)
	}
}

// hidesOwners shows no owners, as a server does to a client that may not break locks.
type hidesOwners struct{ *memlock.Backend }

func (b hidesOwners) Inspect(ctx context.Context, name string) (driver.Info, error) {
	info, err := b.Backend.Inspect(ctx, name)
	for i := range info.Holders {
		info.Holders[i].Owner = ""
	}
	return info, err
}

func TestAttachWithoutTheSightOfOwners(t *testing.T) {
	store := memlock.NewStore()
	a, b := client(t, store.Connect(), nil), client(t, hidesOwners{store.Connect()}, nil)
	taken := mustLock(t, a.Mutex("x"))
	expect.Be(t, expect.Err(b.Attach(t.Context(), "x", driver.NewOwner())), distlock.ErrLost, "another owner")
	lease, err := b.Attach(t.Context(), "x", taken.Owner())
	if err != nil || lease.Fence() != taken.Fence() {
		t.Fatalf("got %v, %v", lease, err)
	}
	book := a.RWMutex("book")
	for range 2 {
		reader := must.Get(book.RLock(t.Context()))(t)
		if l, err := b.Attach(t.Context(), "book", reader.Owner()); err != nil || l.Mode() != distlock.Read {
			t.Errorf("a reader: %v", err)
		}
	}
}

// An Attach that was refused is no reason to refuse a later one.
func TestAttachAfterARefusal(t *testing.T) {
	a, _, _ := pairOfClients(t)
	taken := mustLock(t, a.Mutex("x"))
	expect.Be(t, expect.Err(a.Attach(t.Context(), "x", taken.Owner())), distlock.ErrInvalid, "by the holder")
	attached := must.Get(a.Attach(t.Context(), "x", mustDetach(t, taken)))(t)
	again := must.Get(a.Attach(t.Context(), "x", mustDetach(t, attached)))(t)
	mustUnlock(t, again)
}

// Unlock of a lost lease does not release the hold that the same client has attached since.
func TestUnlockOfALostLeaseAfterAttach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, _ := pairOfClients(t)
		lost := mustLock(t, a.Mutex("x", distlock.MaxHold(10*time.Second)))
		<-lost.Context().Done()
		attached := must.Get(a.Attach(t.Context(), "x", lost.Owner()))(t)
		expect.Be(t, lost.Unlock(t.Context()), distlock.ErrLost, "Unlock of the lost lease")
		synctest.Wait()
		if _, err := b.Mutex("x").TryLock(t.Context()); !errors.Is(err, distlock.ErrHeld) || attached.Err() != nil {
			t.Errorf("beside the attached lease (%v): %v", attached.Err(), err)
		}
		mustUnlock(t, attached)
		free(t, b, "x")
	})
}

// A Detach that meets the loss of the lease releases what may be left of it.
func TestDetachOfALostLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		r := &rig{Backend: store.Connect()}
		c := client(t, r, nil)
		r.set(func(r *rig) {
			r.renew = func(ctx context.Context, holds []driver.Hold, next renewer) []error {
				next(ctx, holds)
				return allErrors(holds, errNetwork)
			}
		})
		lease := mustLock(t, c.Mutex("x"))
		<-lease.Context().Done()
		expect.Be(t, expect.Err(lease.Detach(t.Context())), distlock.ErrLost, "Detach")
		synctest.Wait()
		allFree(t, store)
	})
}
