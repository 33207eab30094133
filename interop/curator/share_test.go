package curator

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/interop"
)

// Each side keeps the other out, also where the names are unusual.
func TestLongNames(t *testing.T) {
	each(t, func(t *testing.T, e *edition) {
		for _, k := range []kind{mutex, write, read, lone, permit(1)} {
			for _, pattern := range []string{"NAME", "a/NAME/b", "NAME-ключ-鍵", "{NAME}:.%~", "lock-NAME", "NAME-lock-7"} {
				s := fixtureOf(t, single(t), e, k, strings.ReplaceAll(pattern, "NAME", interop.NewName(t)))
				s.on(s.th, "lock").Wait(t)
				interop.IsHeld(t, k.excludes().Lock(s.c, s.name))
				s.on(s.th, "unlock").Wait(t)
				h := interop.Take(t, s.lock)
				s.keepsOut(t, k.excludes())
				interop.Give(t, h)
				s.leavesNothing(t)
			}
		}
	})
}

// Fences of Go's grants increase also where Java had the lock in between.
func TestLongFencesIncrease(t *testing.T) {
	each(t, func(t *testing.T, e *edition) {
		for _, k := range []kind{mutex, write, lone} {
			s, last := newFixture(t, single(t), e, k), uint64(0)
			for range 20 {
				h := interop.Take(t, s.lock)
				fence := interop.Fence(h)
				if fence <= last {
					t.Errorf("%s: fence %d came after %d", k.Java, fence, last)
				}
				last = fence
				interop.Give(t, h)
				s.on(s.th, "lock").Wait(t)
				s.on(s.th, "unlock").Wait(t)
			}
		}
	})
}

// Readers of both sides are in together. A writer waits for all of them, and later readers wait for
// the writer.
func TestLongReadersAreTogether(t *testing.T) {
	each(t, func(t *testing.T, e *edition) {
		s := newFixture(t, single(t), e, read)
		ours := interop.Take(t, s.lock)
		s.on(s.th, "lock").Wait(t)
		second := interop.Take(t, s.lock)
		interop.IsHeld(t, write.Lock(s.c, s.name))
		writer := s.onKind(s.other, write, "lock")
		s.other.Parks(t)
		interop.IsHeld(t, s.lock)
		interop.Give(t, ours)
		s.on(s.th, "unlock").Wait(t)
		interop.Give(t, second)
		writer.Wait(t)
		s.onKind(s.other, write, "unlock").Wait(t)
		s.leavesNothing(t)
	})
}

// Go turns a write lock into a read lock: Java's waiting readers are granted at once. Its writers
// are not, even if they came earlier.
func TestLongGoDowngrades(t *testing.T) {
	each(t, func(t *testing.T, e *edition) {
		s := newFixture(t, single(t), e, read)
		w := must.Get(s.c.RWMutex(s.name).Lock(t.Context()))(t)
		reader := s.on(s.th, "lock")
		s.th.Parks(t)
		writer := s.onKind(s.other, write, "lock")
		s.other.Parks(t)
		start := time.Now()
		must.OK(t, w.Downgrade(t.Context()))
		if took := interop.At(t, reader.Wait(t)).Sub(start); took > interop.Prompt {
			t.Errorf("Java's reader came in after %v", took)
		}
		s.on(s.th, "unlock").Wait(t)
		s.other.Parks(t)
		released := time.Now()
		interop.Give(t, w)
		if at := interop.At(t, writer.Wait(t)); at.Before(released) {
			t.Errorf("Java's writer came in %v before Go's reader had gone", released.Sub(at))
		}
		s.onKind(s.other, write, "unlock").Wait(t)
		s.leavesNothing(t)
	})
}

// Java reads under its write lock and gives up writing: Go's readers are granted, its writers are
// not.
func TestLongJavaDowngrades(t *testing.T) {
	each(t, func(t *testing.T, e *edition) {
		s := newFixture(t, single(t), e, read)
		s.onKind(s.th, write, "lock").Wait(t)
		s.on(s.th, "lock").Wait(t)
		interop.IsHeld(t, s.lock)
		waiter := interop.Wait(t, s.lock)
		s.awaitNodes(t, 3)
		called := interop.At(t, s.onKind(s.th, write, "unlock").Wait(t))
		g := waiter.Granted(t)
		if took := g.At.Sub(called); took > interop.Prompt {
			t.Errorf("Go's reader came in after %v", took)
		}
		interop.Give(t, g)
		interop.IsHeld(t, write.Lock(s.c, s.name))
		s.on(s.th, "unlock").Wait(t)
		interop.Give(t, interop.Take(t, write.Lock(s.c, s.name)))
		s.leavesNothing(t)
	})
}

// awaitNodes returns when the lock has so many nodes.
func (f *fixture) awaitNodes(t *testing.T, want int) {
	t.Helper()
	var got []string
	interop.Eventually(t, func() string { return "nodes: " + strings.Join(got, " ") }, func() bool {
		got = f.nodes(t, "/"+f.name)
		return len(got) == want
	})
}

// A writer in Go that waits while Java downgrades stays out until Java has read. Before
// 5.5 Java's own place is behind the writer's, which Java would grant as well
// (CURATOR-621).
func TestLongJavaDowngradesBeforeAWriter(t *testing.T) {
	each(t, func(t *testing.T, e *edition) {
		s := newFixture(t, single(t), e, read)
		s.onKind(s.th, write, "lock").Wait(t)
		waiter := interop.Wait(t, write.Lock(s.c, s.name))
		s.awaitNodes(t, 2)
		s.on(s.th, "lock").Wait(t)
		s.awaitNodes(t, 3)
		s.onKind(s.th, write, "unlock").Wait(t)
		behind := slices.IndexFunc(s.nodes(t, "/"+s.name), isReader) > 0
		if v := e.version(t); behind != before55(t, v) {
			t.Errorf("Curator %s: nodes %q", v, s.nodes(t, "/"+s.name))
		}
		released := time.Now()
		s.on(s.th, "unlock").Wait(t)
		g := waiter.Granted(t)
		if !behind && g.At.Before(released) {
			t.Errorf("Go's writer came in %v before Java's reader had gone", released.Sub(g.At))
		}
		interop.Give(t, g)
		s.leavesNothing(t)
	})
}

func before55(t *testing.T, version string) bool {
	t.Helper()
	var major, minor int
	must.Get(fmt.Sscanf(version, "%d.%d", &major, &minor))(t)
	return major < 5 || major == 5 && minor < 5
}

func isReader(node string) bool { return strings.Contains(node, "__READ__") }

// Java and Go share one queue and get the lock in its order.
func TestLongOrder(t *testing.T) {
	each(t, func(t *testing.T, e *edition) {
		for _, k := range []kind{mutex, write} {
			inOrder(t, newFixture(t, single(t), e, k))
		}
	})
}

func inOrder(t *testing.T, s *fixture) {
	h := interop.Take(t, s.lock)
	var came []func() time.Time // when each got in
	for i := range 8 {
		if i%2 == 0 {
			came = append(came, s.javaPasses(t, i))
		} else {
			passes := interop.Pass(t, s.k.Lock(s.d.client(t, &distlock.Options{TTL: life}), s.name))
			came = append(came, func() time.Time { return passes.Granted(t).At })
		}
		s.awaitNodes(t, i+2)
	}
	interop.Give(t, h)
	var times []time.Time
	for _, at := range came {
		times = append(times, at())
	}
	if !slices.IsSortedFunc(times, time.Time.Compare) {
		t.Errorf("%s: they got in at %v", s.k.Java, times)
	}
	s.leavesNothing(t)
}

// javaPasses makes a Java thread wait for the lock and release it at once.
func (f *fixture) javaPasses(t *testing.T, i int) func() time.Time {
	th := f.j.Thread("passes-" + string(rune('0'+i)))
	locks, unlocks := f.on(th, "lock"), f.on(th, "unlock")
	return func() time.Time {
		unlocks.Wait(t)
		return interop.At(t, locks.Wait(t))
	}
}

// Both sides count the same permits, and none passes the queue.
func TestLongPermitsAreCountedTogether(t *testing.T) {
	each(t, func(t *testing.T, e *edition) {
		s := newFixture(t, single(t), e, permit(3))
		a := interop.Take(t, s.lock)
		s.on(s.th, "lock").Wait(t)
		c := interop.Take(t, s.lock)
		interop.IsHeld(t, s.lock)
		s.keepsOut(t, s.k)
		waiter := s.on(s.other, "lock")
		s.other.Parks(t)
		interop.IsHeld(t, s.lock)
		interop.Give(t, a)
		waiter.Wait(t)
		s.on(s.other, "unlock").Wait(t)
		interop.Give(t, interop.Take(t, s.lock))
		s.on(s.th, "unlock").Wait(t)
		interop.Give(t, c)
		s.leavesNothing(t)
	})
}
