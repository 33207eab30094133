package exclusion

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

func client(t *testing.T) *distlock.Client {
	t.Helper()
	c := must.Get(distlock.New(memlock.New(), nil))(t)
	t.Cleanup(func() { c.Close() })
	return c
}

func take(t *testing.T, c *distlock.Client, name string) *distlock.Lease {
	t.Helper()
	lease := must.Get(c.Mutex(name).Lock(t.Context()))(t)
	return lease
}

func TestTurns(t *testing.T) {
	l, c := New(), client(t)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 10 {
				expect.OK(t, l.Hold(t.Context(), "one", c.Mutex("a"), time.Millisecond))
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
func TestFaults(t *testing.T) {
	l := New()
	one, two := take(t, client(t), "a"), take(t, client(t), "a")
	l.Enter("one", one)
	if who, lease := l.Holder("a"); who != "one" || lease != one {
		t.Errorf("held by %q", who)
	}
	l.Enter("two", two)
	all := strings.Join(l.faults, "; ")
	if len(l.faults) != 2 || !strings.Contains(all, "while one had it") || !strings.Contains(all, "after 1") {
		t.Errorf("faults: %s", all)
	}
}

func TestEndedLease(t *testing.T) {
	l, c := New(), client(t)
	lease := take(t, c, "a")
	lease.Unlock(context.Background())
	l.Enter("late", lease)
	if n, _ := l.Holds(); n != 0 || len(l.faults) > 0 {
		t.Errorf("%d holds, %q", n, l.faults)
	}
}

func TestVisits(t *testing.T) {
	l := New()
	for i, who := range []string{"a", "b", "b", "a"} {
		l.Visit(who, "lock", uint64(i+1), 0)
	}
	l.Visit("a", "without fences", 0, 0)
	l.Visit("a", "without fences", 0, 0)
	l.Judge(t, 6)
	expect.Equal(t, l.Turns("lock"), 2, "turns")
	l.Visit("b", "lock", 4, 0)
	if len(l.Faults()) != 1 {
		t.Errorf("faults: %q, want one for the fence", l.Faults())
	}
	for _, fence := range []uint64{5, 0, 3} {
		l.Visit("c", "shared with holders that have no fence", fence, 0)
	}
	if len(l.Faults()) != 2 {
		t.Errorf("faults: %q, want another for the fence after a holder without one", l.Faults())
	}
	l.Enter("a", &visit{"lock", 5})
	l.Visit("b", "lock", 6, 0)
	l.Visit("b", "lock", 7, 0)
	if len(l.Faults()) != 4 {
		t.Errorf("faults: %q, want two more for the visits beside a holder", l.Faults())
	}
}

// shared is a hold that may have others beside it.
type shared struct {
	visit
	Sharing
}

func (s *shared) Shares() Sharing { return s.Sharing }

// Readers are held together, and as many permits as there are; each beside one of another kind is a fault.
func TestSharedHolds(t *testing.T) {
	of := func(name, kind string, room int) *shared { return &shared{visit{name, 1}, Sharing{kind, room}} }
	for want, holds := range map[int][]*shared{
		0: {of("readers", "read", 9), of("readers", "read", 9), of("permits", "permits", 2), of("permits", "permits", 2)},
		1: {of("permits", "permits", 2), of("permits", "permits", 2), of("permits", "permits", 2)},
		2: {of("kinds", "read", 9), of("kinds", "permits", 2), of("writer", "read", 9), of("writer", "w", 1)},
	} {
		l := New()
		for _, h := range holds {
			l.Enter("somebody", h)
			if beside := l.Beside(h) != ""; beside && want == 0 {
				t.Errorf("%v is beside another", h)
			}
		}
		expect.Equal(t, len(l.Faults()), want, l.Faults())
	}
}

// over is a hold that is over by the clock.
type over struct {
	visit
	ctx context.Context
}

func (o *over) Context() context.Context { return o.ctx }
func (o *over) Err() error {
	if o.fence = o.fence * 2; o.fence > 2 {
		return context.DeadlineExceeded
	}
	return nil
}

// A context may end a moment after the clock says so, and not never.
func TestLateContext(t *testing.T) {
	soon, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	for want, ctx := range []context.Context{soon, t.Context()} {
		l := New()
		l.Enter("one", &over{visit{"lock", 1}, ctx})
		l.Enter("two", &visit{"lock", 9})
		l.late.Wait()
		expect.Equal(t, len(l.Faults()), want, l.Faults())
	}
	l, c := New(), client(t)
	l.Enter("one", must.Get(c.Mutex("a", distlock.WithTTL(50*time.Millisecond), distlock.WithoutRenewal()).Lock(t.Context()))(t))
	l.Enter("two", take(t, c, "a"))
	l.Judge(t, 2)
}
