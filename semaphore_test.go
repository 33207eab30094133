package distlock_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// As many hold as there are permits, each under a fence of its own, and another gets the first that is given back.
func TestSemaphore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		s := client(t, store.Connect(), nil).Semaphore("x", 2)
		elsewhere := client(t, store.Connect(), nil)
		first := must.Get(s.Acquire(t.Context()))(t)
		second, err := s.TryAcquire(t.Context())
		if err != nil || second.Fence() <= first.Fence() {
			t.Fatalf("the second permit: fence %d after %d, %v", second.Fence(), first.Fence(), err)
		}
		expect.Be(t, expect.Err(elsewhere.Semaphore("x", 2).TryAcquire(t.Context())), distlock.ErrHeld, "a third permit of two")
		expect.Be(t, expect.Err(elsewhere.Semaphore("x", 3).TryAcquire(t.Context())), distlock.ErrInvalid, "another limit")
		third := make(chan uint64)
		go func() {
			err := elsewhere.Semaphore("x", 2).Do(t.Context(), func(ctx context.Context) error {
				third <- distlock.Fence(ctx)
				return nil
			})
			expect.OK(t, err, "the third permit")
		}()
		synctest.Wait()
		select {
		case <-third:
			t.Error("three hold two permits")
		default:
		}
		mustUnlock(t, first)
		if fence := <-third; fence <= second.Fence() {
			t.Errorf("the third permit: fence %d after %d", fence, second.Fence())
		}
		mustUnlock(t, second)
		synctest.Wait()
		allFree(t, store)
	})
}

// A caller with one of two permits that asks for the other waits for who has that, but not behind another kind of lock, which
// waits for both: it would wait for itself.
func TestWaitForAPermitBehindAnotherKind(t *testing.T) {
	kinds := map[string]func(*distlock.Client) (*distlock.Lease, error){
		"mutex":  func(c *distlock.Client) (*distlock.Lease, error) { return c.Mutex("s").Lock(context.Background()) },
		"writer": func(c *distlock.Client) (*distlock.Lease, error) { return c.RWMutex("s").Lock(context.Background()) },
		"permit": func(c *distlock.Client) (*distlock.Lease, error) {
			return c.Semaphore("s", 2).Acquire(context.Background())
		},
	}
	for kind, lock := range kinds {
		for where, others := range map[string]func(t *testing.T, own *distlock.Client, store *memlock.Store) *distlock.Client{
			"this client": func(_ *testing.T, own *distlock.Client, _ *memlock.Store) *distlock.Client { return own },
			"another process": func(t *testing.T, _ *distlock.Client, s *memlock.Store) *distlock.Client {
				return client(t, s.Connect(), nil)
			},
		} {
			t.Run(kind+" of "+where, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store := memlock.NewStore()
					c := client(t, store.Connect(), nil)
					one := must.Get(c.Semaphore("s", 2).Acquire(t.Context()))(t)
					other := must.Get(client(t, store.Connect(), nil).Semaphore("s", 2).Acquire(t.Context()))(t)
					waits := make(chan struct{})
					go func() {
						defer close(waits)
						mustUnlock(t, must.Get(lock(others(t, c, store)))(t))
					}()
					synctest.Wait()
					time.AfterFunc(time.Second, func() { mustUnlock(t, other) })
					two, err := c.Semaphore("s", 2).Acquire(one.Context())
					if kind == "permit" {
						expect.OK(t, err, "the second permit")
						mustUnlock(t, two)
					} else {
						expect.Be(t, err, distlock.ErrInvalid, "the second permit")
					}
					mustUnlock(t, one)
					<-waits
				})
			})
		}
	}
}

// A caller that has all permits would wait for itself.
func TestWaitForOnesOwnPermits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		s := client(t, store.Connect(), nil).Semaphore("s", 2)
		first := must.Get(s.Acquire(t.Context()))(t)
		second := must.Get(s.Acquire(first.Context()))(t)
		expect.Be(t, expect.Err(s.Acquire(second.Context())), distlock.ErrInvalid, "a third permit of two")
		mustUnlock(t, second)
		mustUnlock(t, first)
		allFree(t, store)
	})
}

// TestHammerPermits: no more than three hold at once, in real time.
func TestHammerPermits(t *testing.T) {
	store := memlock.NewStore()
	var permits guarded
	var wg sync.WaitGroup
	for range 2 {
		s := client(t, store.Connect(), nil).Semaphore("sem", 3)
		for range 8 {
			wg.Go(func() {
				for range 50 {
					err := s.Do(t.Context(), func(ctx context.Context) error {
						permits.enter(t, distlock.Fence(ctx), 3)
						permits.leave()
						return nil
					})
					expect.OK(t, err, "permit")
				}
			})
		}
	}
	wg.Wait()
}
