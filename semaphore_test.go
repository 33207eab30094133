package distlock_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

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
