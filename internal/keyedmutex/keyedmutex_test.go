package keyedmutex_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/distlock/distlock/internal/keyedmutex"
)

func TestOneAtATime(t *testing.T) {
	var mu keyedmutex.Mutex[string]
	inside := map[string]*int{"a": new(int), "b": new(int)} // a race if two are inside
	var wg sync.WaitGroup
	for key, n := range inside {
		for range 100 {
			wg.Go(func() {
				unlock, err := mu.Lock(t.Context(), key)
				if err != nil {
					t.Error(err)
					return
				}
				*n++
				unlock()
			})
		}
	}
	wg.Wait()
	if *inside["a"] != 100 || *inside["b"] != 100 || mu.Len() != 0 {
		t.Errorf("%d and %d increments, %d keys in use", *inside["a"], *inside["b"], mu.Len())
	}
}

func TestGivingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu keyedmutex.Mutex[int]
		unlock, err := mu.Lock(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		unlockOther, err := mu.Lock(t.Context(), 2)
		if err != nil {
			t.Fatal("waits for another key:", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error)
		go func() {
			_, err := mu.Lock(ctx, 1)
			failed <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-failed; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		unlock()
		if unlockAgain, err := mu.Lock(t.Context(), 1); err != nil {
			t.Error(err)
		} else {
			unlockAgain()
		}
		unlockOther()
		if n := mu.Len(); n != 0 {
			t.Errorf("%d keys in use", n)
		}
	})
}
