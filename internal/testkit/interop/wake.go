package interop

import (
	"slices"
	"testing"
	"time"
)

// Prompt is when a waiter has been woken, and has not waited for the end of a lock, which is much
// later.
const Prompt = 10 * time.Second

// poll is sooner than a Go client looks again by itself.
const poll = 400 * time.Millisecond

// Judge expects that waiters were woken promptly, and most of them before they look by themselves.
func Judge(t *testing.T, what string, took []time.Duration) {
	t.Helper()
	slices.Sort(took)
	p50, p99, longest := took[len(took)/2], took[len(took)*99/100], took[len(took)-1]
	t.Logf("%s after: p50 %v, p99 %v (%d times)", what, Round(p50), Round(p99), len(took))
	if longest > Prompt || p50 > poll {
		t.Errorf("%s after %v, and half of them after %v; want less than %v and %v", what, longest, p50, Prompt, poll)
	}
}
