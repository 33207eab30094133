package curator

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
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
	info := must.Get(f.c.Inspect(t.Context(), f.name))(t)
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
	must.OK(t, s.c.ForceUnlock(t.Context(), info))
	g := waiter.Granted(t)
	if took := g.At.Sub(start); took > interop.Prompt {
		t.Errorf("granted %v after it was broken", took)
	}
	s.on(s.th, "mine").Says(t, "true")
	s.on(s.th, "unlock").Wait(t)
	expect.Be(t, s.c.ForceUnlock(t.Context(), info), distlock.ErrLost, "broken again")
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

// Java's Revoker requests the release from a holder in Go. Its lock passes to a waiter in Java.
func TestLongJavaAsksGo(t *testing.T) {
	each(t, func(t *testing.T, e *edition) {
		s := newFixture(t, single(t), e, mutex)
		var took []time.Duration
		for range 10 {
			took = append(took, s.javaAsksGo(t))
		}
		interop.Judge(t, "Java's question reached Go", took)
		s.leavesNothing(t)
	})
}

// javaAsksGo returns the time from Java's request until Go is notified.
func (f *fixture) javaAsksGo(t *testing.T) time.Duration {
	asked := make(chan time.Time, 2)
	h := must.Get(f.c.Mutex(f.name, distlock.Revocable(func(*distlock.Lease) { asked <- time.Now() })).Lock(t.Context()))(t)
	waiter := f.on(f.th, "lock")
	f.th.Parks(t)
	node := f.other.Call("participants", f.java, f.name).Wait(t)[0]
	called := interop.At(t, f.other.Call("ask", f.java, node).Wait(t))
	at := interop.Await(t, asked, "a question")
	if h.Err() != nil {
		t.Errorf("the lease ended: %v", h.Err())
	}
	interop.Give(t, h)
	waiter.Wait(t)
	f.on(f.th, "unlock").Wait(t)
	if len(asked) > 0 {
		t.Error("revoked twice")
	}
	return at.Sub(called)
}

// Go requests the release from a holder in Java that has called makeRevocable, and waits for the lock.
func TestLongGoAsksJava(t *testing.T) {
	each(t, func(t *testing.T, e *edition) {
		s := newFixture(t, single(t), e, mutex)
		var took []time.Duration
		for range 10 {
			took = append(took, s.goAsksJava(t))
		}
		interop.Judge(t, "Go's question reached Java", took)
		s.leavesNothing(t)
	})
}

// goAsksJava returns the time from Go's request until Java is notified.
func (f *fixture) goAsksJava(t *testing.T) time.Duration {
	f.th.Call("agree", f.java, f.name).Wait(t)
	f.on(f.th, "lock").Wait(t)
	waiter := interop.Pass(t, f.lock)
	called := time.Now()
	must.OK(t, f.c.Revoke(t.Context(), f.inspect(t)))
	at := interop.At(t, f.th.Call("asked", f.java, f.name).Wait(t))
	f.on(f.th, "unlock").Wait(t)
	waiter.Granted(t)
	return at.Sub(called)
}
