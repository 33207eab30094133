package wait_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/wait"
)

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		if err := wait.Sleep(t.Context(), time.Second); err != nil || time.Since(start) != time.Second {
			t.Errorf("Sleep took %v: %v", time.Since(start), err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := wait.Sleep(ctx, time.Hour); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 2*time.Second {
			t.Errorf("Sleep took %v: %v", time.Since(start), err)
		}
	})
}

func TestJitter(t *testing.T) {
	for range 1000 {
		if d := wait.Jitter(time.Second); d < time.Second/2 || d > 3*time.Second/2 {
			t.Fatal(d)
		}
	}
	expect.Equal(t, wait.Jitter(0), 0)
}

func TestBackoff(t *testing.T) {
	for try, want := range []time.Duration{1, 2, 4, 8, 10, 10} {
		if d := wait.Backoff(try, time.Second, 10*time.Second); d != want*time.Second {
			t.Errorf("try %d: %v, want %v s", try, d, want)
		}
	}
	expect.Equal(t, wait.Backoff(1000, time.Second, time.Minute), time.Minute)
}

func TestSignal(t *testing.T) {
	s := wait.NewSignal()
	s.Notify()
	s.Notify()
	<-s
	select {
	case <-s:
		t.Error("two notifications, want one")
	default:
	}
}

func TestKeyedMutex(t *testing.T) {
	var mu wait.KeyedMutex[string]
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

func TestGivingUpAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu wait.KeyedMutex[int]
		unlock := must.Get(mu.Lock(t.Context(), 1))(t)
		unlockOther, err := mu.Lock(t.Context(), 2)
		must.OK(t, err, "waits for another key")
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error)
		go func() {
			_, err := mu.Lock(ctx, 1)
			failed <- err
		}()
		synctest.Wait()
		cancel()
		expect.Be(t, <-failed, context.Canceled)
		unlock()
		if unlockAgain, err := mu.Lock(t.Context(), 1); err != nil {
			t.Error(err)
		} else {
			unlockAgain()
		}
		unlockOther()
		expect.Equal(t, mu.Len(), 0, "keys in use")
	})
}
