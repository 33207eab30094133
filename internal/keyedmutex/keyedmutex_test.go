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
	var all keyedmutex.Turns[string]
	inside := map[string]*int{"a": new(int), "b": new(int)} // a race if two are inside
	var wg sync.WaitGroup
	for key, n := range inside {
		for range 100 {
			wg.Go(func() {
				leave, err := all.Enter(t.Context(), key)
				if err != nil {
					t.Error(err)
					return
				}
				*n++
				leave()
			})
		}
	}
	wg.Wait()
	if *inside["a"] != 100 || *inside["b"] != 100 || all.Len() != 0 {
		t.Errorf("%d and %d turns, %d keys are left", *inside["a"], *inside["b"], all.Len())
	}
}

func TestGivingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all keyedmutex.Turns[int]
		leave, err := all.Enter(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		other, err := all.Enter(t.Context(), 2)
		if err != nil {
			t.Fatal("another key's turn is awaited:", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error)
		go func() {
			_, err := all.Enter(ctx, 1)
			failed <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-failed; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		leave()
		if again, err := all.Enter(t.Context(), 1); err != nil {
			t.Error(err)
		} else {
			again()
		}
		other()
		if n := all.Len(); n != 0 {
			t.Errorf("%d keys are left", n)
		}
	})
}
