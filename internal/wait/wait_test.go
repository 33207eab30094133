package wait_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

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
	if d := wait.Jitter(0); d != 0 {
		t.Error(d)
	}
}

func TestBackoff(t *testing.T) {
	for try, want := range []time.Duration{1, 2, 4, 8, 10, 10} {
		if d := wait.Backoff(try, time.Second, 10*time.Second); d != want*time.Second {
			t.Errorf("try %d: %v, want %v s", try, d, want)
		}
	}
	if d := wait.Backoff(1000, time.Second, time.Minute); d != time.Minute {
		t.Error(d)
	}
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
