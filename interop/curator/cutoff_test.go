package curator

import (
	"context"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/interop"
	"github.com/distlock/distlock/interop/peers"
)

// A holder in Go that hears nothing from the server any more ends its lease before Java has
// the lock.
func TestLongGoIsCutOff(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, e *edition) {
		t.Parallel()
		s := newFixture(t, single(t), e, mutex)
		p := faultproxy.New(t, s.d.addrs[0])
		far := &deployment{[]string{p.Addr()}}
		h := interop.Take(t, mutex.Lock(far.client(t, &distlock.Options{TTL: shortLife}), s.name))
		ended := make(chan time.Time, 1)
		context.AfterFunc(h.Context(), func() { ended <- time.Now() })
		th := s.j.Thread("cut-off")
		waiter := s.on(th, "lock")
		th.Parks(t)
		p.Silence()
		granted := interop.At(t, waiter.Wait(t))
		early := granted.Sub(interop.Await(t, ended, "the end of the lease"))
		t.Logf("the lease ended %v before Java had the lock", peers.Round(early))
		if early < 0 {
			t.Errorf("the lease ended %v after Java had the lock", -early)
		}
		s.on(th, "unlock").Wait(t)
		p.Pass()
		s.leavesNothing(t)
	})
}

// A holder in Java that is cut off keeps its lock until its session has ended. Curator sometimes
// reports the loss later than that.
func TestLongJavaIsCutOff(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, e *edition) {
		t.Parallel()
		s := newFixture(t, single(t), e, mutex)
		p := faultproxy.New(t, s.d.addrs[0])
		victim := e.jvms.Start(t)
		defer victim.Kill()
		java, th := (&deployment{[]string{p.Addr()}}).javaClient(t, victim, shortLife), victim.Thread("main")
		last := time.Now()
		th.Call("lock", java, "mutex", s.name).Wait(t)
		waiter := interop.Wait(t, s.lock)
		s.awaitNodes(t, 2)
		p.Silence()
		g := waiter.Granted(t)
		if took := g.At.Sub(last); took < shortLife {
			t.Errorf("Go had the lock after %v, want %v", took, shortLife)
		}
		lostAt := interop.At(t, th.Call("lost", java).Wait(t))
		t.Logf("Go had the lock %v after the last sign of life, Curator was LOST %v later",
			peers.Round(g.At.Sub(last)), peers.Round(lostAt.Sub(g.At)))
		interop.Give(t, g)
	})
}
