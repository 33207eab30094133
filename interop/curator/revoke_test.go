package curator

import (
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/interop"
)

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
	h, err := f.c.Mutex(f.name, distlock.Revocable(func(*distlock.Lease) { asked <- time.Now() })).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
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
	if err := f.c.Revoke(t.Context(), f.inspect(t)); err != nil {
		t.Fatal(err)
	}
	at := interop.At(t, f.th.Call("asked", f.java, f.name).Wait(t))
	f.on(f.th, "unlock").Wait(t)
	waiter.Granted(t)
	return at.Sub(called)
}
