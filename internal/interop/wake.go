package interop

import (
	"slices"
	"testing"
	"time"
)

// Prompt is when a waiter has been woken, and not come by itself: the locks that it waits
// for live for much longer.
const Prompt = time.Second

// Judge expects that waiters were woken promptly.
func Judge(t *testing.T, what string, took []time.Duration) {
	t.Helper()
	slices.Sort(took)
	p50, p99, longest := took[len(took)/2], took[len(took)*99/100], took[len(took)-1]
	t.Logf("%s after: p50 %v, p99 %v (%d times)", what, Round(p50), Round(p99), len(took))
	if longest > Prompt {
		t.Errorf("%s after %v, want less than %v", what, longest, Prompt)
	}
}
