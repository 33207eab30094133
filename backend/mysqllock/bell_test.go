package mysqllock

import (
	"slices"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testserver"
)

// handOver lets a lock go back and forth between two backends, each of which waits while
// the other holds, and measures from the release to the next grant.
func handOver(t testing.TB, a, b driver.Backend, times int, held time.Duration) []time.Duration {
	t.Helper()
	took := make([]time.Duration, 0, times)
	holder, waiter := a, b
	r := asks("hand-over", driver.Exclusive)
	take(t, holder, r)
	for range times {
		next := asks(r.Name, r.Mode)
		refused(t, waiter, next)
		w, err := waiter.(driver.Waiter).Watch(t.Context(), next)
		if err != nil {
			t.Fatal(err)
		}
		refused(t, waiter, next)
		time.Sleep(held)
		drain(w)
		start := time.Now()
		gives(t, holder, r)
		for {
			select {
			case <-w.Ready:
			case <-time.After(patient):
				t.Fatal("the release was not signalled")
			}
			if _, err := waiter.Acquire(t.Context(), next); err == nil {
				break
			}
		}
		took = append(took, time.Since(start))
		w.Close()
		holder, waiter, r = waiter, holder, next
	}
	gives(t, holder, r)
	slices.Sort(took)
	return took
}

func drain(w driver.Watch) {
	select {
	case <-w.Ready:
	default:
	}
}

// A waiter learns of a release by its bell, long before it would look at the row again.
func TestBellHandsOver(t *testing.T) {
	t.Parallel()
	u := testserver.SharedMariaDB(t).Database(t)
	a, b := rowAt(t, u), rowAt(t, u)
	hasBell(t, a)
	hasBell(t, b)
	// Whoever only looks at the row does so every 100 ms by then.
	took := handOver(t, a, b, 20, 200*time.Millisecond)
	t.Logf("from a release to the next grant: p50 %v, longest %v", took[10], took[19])
	if took[10] > 40*time.Millisecond {
		t.Errorf("half of the hand-overs took %v or longer: the bell was not heard", took[10])
	}
}
