package curator

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/interop"
)

// Inspect shows the holders and waiters of both sides, in their order, with the UUIDs
// of their nodes and the address that Curator writes.
func TestLongInspect(t *testing.T) {
	each(t, func(t *testing.T, e *edition) {
		s := newFixture(t, single(t), e, mutex)
		s.on(s.th, "lock").Wait(t)
		ours := interop.Pass(t, s.lock)
		s.awaitNodes(t, 2)
		javas := s.on(s.other, "lock")
		s.other.Parks(t)
		info := s.inspect(t)
		if len(info.Holders) != 1 || len(info.Waiters) != 2 || info.WaiterCount != 2 || info.Mode != distlock.Exclusive {
			t.Fatalf("info: %+v", info)
		}
		all := slices.Concat(info.Holders, info.Waiters)
		for i, path := range s.th.Call("participants", s.java, s.name).Wait(t) {
			if !strings.Contains(path, "/_c_"+all[i].Owner+"-lock-") {
				t.Errorf("at %d Java sees %s, Go %+v", i, path, all[i])
			}
		}
		if all[0].Meta["host"] == "" || all[2].Meta["host"] != all[0].Meta["host"] || all[1].Meta["program"] == "" {
			t.Errorf("meta: %v, %v, %v", all[0].Meta, all[1].Meta, all[2].Meta)
		}
		s.on(s.th, "unlock").Wait(t)
		ours.Granted(t)
		javas.Wait(t)
		s.on(s.other, "unlock").Wait(t)
		if info := s.inspect(t); len(info.Holders)+len(info.Waiters) != 0 {
			t.Errorf("of a free lock: %+v", info)
		}
	})
}

func (f *fixture) inspect(t *testing.T) distlock.Info {
	t.Helper()
	info, err := f.c.Inspect(t.Context(), f.name)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// Inspect shows the modes of Java's holds.
func TestLongInspectShowsModes(t *testing.T) {
	each(t, func(t *testing.T, e *edition) {
		for k, want := range map[*kind]distlock.Mode{&write: distlock.Write, &read: distlock.Read, &lone: distlock.Counted} {
			s := newFixture(t, single(t), e, *k)
			s.on(s.th, "lock").Wait(t)
			if info := s.inspect(t); len(info.Holders) != 1 || info.Holders[0].Mode != want || info.Mode != want {
				t.Errorf("%s: %+v", k.Java, info)
			}
			s.on(s.th, "unlock").Wait(t)
		}
	})
}

// A lock that Go releases by force is granted at once to a waiter. Java is not notified: its
// release finds nothing, returns no error, and does not touch the next holder's lock.
func TestLongGoBreaks(t *testing.T) {
	each(t, func(t *testing.T, e *edition) {
		for _, k := range []kind{mutex, write, read, permit(1)} {
			t.Run(k.Java, func(t *testing.T) { goBreaks(t, newFixture(t, single(t), e, k)) })
		}
	})
}

func goBreaks(t *testing.T, s *fixture) {
	s.on(s.th, "lock").Wait(t)
	waiter := interop.Wait(t, s.k.excludes().Lock(s.c, s.name))
	info := s.inspect(t)
	if len(info.Holders) != 1 {
		t.Fatalf("info: %+v", info)
	}
	start := time.Now()
	if err := s.c.ForceUnlock(t.Context(), info); err != nil {
		t.Fatal(err)
	}
	g := waiter.Granted(t)
	if took := g.At.Sub(start); took > interop.Prompt {
		t.Errorf("granted %v after it was broken", took)
	}
	s.on(s.th, "mine").Says(t, "true")
	s.on(s.th, "unlock").Wait(t)
	if err := s.c.ForceUnlock(t.Context(), info); !errors.Is(err, distlock.ErrLost) {
		t.Errorf("broken again: %v", err)
	}
	interop.IsHeld(t, s.lock)
	interop.Give(t, g)
	s.leavesNothing(t)
}

// When Java deletes Go's node, as an operator would, the lease ends and Java's waiter has
// the lock.
func TestLongJavaDeletesGoNode(t *testing.T) {
	each(t, func(t *testing.T, e *edition) {
		s := newFixture(t, single(t), e, mutex)
		h := interop.Take(t, s.lock)
		waiter := s.on(s.th, "lock")
		s.th.Parks(t)
		s.other.Call("delete", s.java, s.other.Call("participants", s.java, s.name).Wait(t)[0]).Wait(t)
		interop.LearnsLoss(t, h, interop.Prompt)
		waiter.Wait(t)
		s.on(s.th, "unlock").Wait(t)
		s.leavesNothing(t)
	})
}

// Go does not take a name that Java uses for one kind of lock for another kind.
func TestLongKindsAreToldApart(t *testing.T) {
	family := map[string]int{"mutex": 1, "write": 2, "read": 2, "permit-2": 3}
	kinds := []kind{mutex, write, read, permit(2)}
	for _, javas := range kinds {
		s := newFixture(t, single(t), current, javas)
		s.on(s.th, "lock").Wait(t)
		for _, ours := range kinds {
			ctx, cancel := context.WithTimeout(t.Context(), interop.Patience)
			_, err := ours.Lock(s.c, s.name).Try(ctx)
			cancel()
			if family[ours.Java] != family[javas.Java] && !errors.Is(err, distlock.ErrInvalid) {
				t.Errorf("%s of Java is %s for Go: %v", javas.Java, ours.Java, err)
			}
		}
		s.on(s.th, "unlock").Wait(t)
	}
}
