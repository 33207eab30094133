package exclusion

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
)

func client(t *testing.T) *distlock.Client {
	t.Helper()
	c, err := distlock.New(memlock.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func take(t *testing.T, c *distlock.Client, name string) *distlock.Lease {
	t.Helper()
	lease, err := c.Mutex(name).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func TestTurnsAreRight(t *testing.T) {
	l, c := New(), client(t)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 10 {
				if err := l.Hold(t.Context(), "one", c.Mutex("a"), time.Millisecond); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	l.Judge(t, 40)
	if who, _ := l.Holder("a"); who != "" || l.Fence("a") == 0 {
		t.Errorf("held by %q, fence %d", who, l.Fence("a"))
	}
}

// Two servers that know nothing of each other give one lock to two holders.
func TestOverlapsAndFencesAreSeen(t *testing.T) {
	l := New()
	one, two := take(t, client(t), "a"), take(t, client(t), "a")
	l.Enter("one", one)
	if who, lease := l.Holder("a"); who != "one" || lease != one {
		t.Errorf("held by %q", who)
	}
	l.Enter("two", two)
	all := strings.Join(l.wrong, "; ")
	if len(l.wrong) != 2 || !strings.Contains(all, "while one had it") || !strings.Contains(all, "after 1") {
		t.Errorf("complaints: %s", all)
	}
}

func TestWhatHasEndedIsNoHold(t *testing.T) {
	l, c := New(), client(t)
	lease := take(t, c, "a")
	lease.Unlock(context.Background())
	l.Enter("late", lease)
	if n, _ := l.Holds(); n != 0 || len(l.wrong) > 0 {
		t.Errorf("%d holds, %q", n, l.wrong)
	}
}
