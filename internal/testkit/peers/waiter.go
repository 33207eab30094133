package peers

import (
	"slices"
	"testing"
	"time"
)

// Waiter is a side that waits for a lock.
type Waiter struct{ Got chan Grant }

// Grant is what its wait ended with.
type Grant struct {
	Held
	At  time.Time
	Err error
}

// StartWaiter lets a side wait.
func StartWaiter(tb testing.TB, s Side, name string) Waiter {
	w := Waiter{make(chan Grant, 1)}
	go func() {
		h, err := s.Lock(tb.Context(), name)
		w.Got <- Grant{h, time.Now(), err}
	}()
	return w
}

// Granted is the end of a wait that must end with the lock.
func (w Waiter) Granted(tb testing.TB) Grant {
	tb.Helper()
	select {
	case g := <-w.Got:
		if g.Err != nil {
			tb.Fatalf("a waiter did not get the lock: %v", g.Err)
		}
		return g
	case <-time.After(Patience):
		tb.Fatal("a waiter never got the lock")
	}
	panic("not reached")
}

// Waits expects that the wait has not ended.
func (w Waiter) Waits(tb testing.TB) {
	tb.Helper()
	select {
	case g := <-w.Got:
		tb.Fatalf("a waiter got what somebody else holds (%v)", g.Err)
	default:
	}
}

// prompt is when a waiter has been woken, and did not come by itself: leases and sessions
// last much longer, and nothing that polls does so all the time.
const prompt = 15 * time.Second

// WakeUps lets a side wait for another, so many times, and expects that it is woken
// promptly. queued returns when the waiter of a lock is in line.
func WakeUps(tb testing.TB, rounds int, waits, holds Side, names func() string, queued func(name string)) {
	tb.Helper()
	var took []time.Duration
	for range rounds {
		took = append(took, wakeUp(tb, waits, holds, names(), queued))
	}
	slices.Sort(took)
	p50, p99, longest := took[len(took)/2], took[len(took)*99/100], took[len(took)-1]
	tb.Logf("%T woken by %T after: p50 %v, p99 %v (%d times)", waits, holds, round(p50), round(p99), len(took))
	if longest > prompt {
		tb.Errorf("%T was woken after %v, want less than %v", waits, longest, prompt)
	}
}

// wakeUp is the time from a holder's unlock until somebody who waits has the lock.
func wakeUp(tb testing.TB, waits, holds Side, name string, queued func(name string)) time.Duration {
	tb.Helper()
	h := Take(tb, holds, name)
	w := StartWaiter(tb, waits, name)
	queued(name)
	w.Waits(tb)
	start := time.Now()
	Give(tb, h)
	g := w.Granted(tb)
	if g.Fence() > 0 && g.Fence() <= h.Fence() {
		tb.Errorf("fence %d came after %d", g.Fence(), h.Fence())
	}
	Give(tb, g)
	return g.At.Sub(start)
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }
