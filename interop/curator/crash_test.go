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

const (
	// shortLife is the timeout of sessions whose process will die. Go's last up to twice as long as
	// its TTL.
	shortLife = 6 * time.Second
	// grace is the time that a busy machine may add, and the server's unit of time. All other sessions
	// live longer.
	grace = 30 * time.Second
)

// mortal is a kind of lock that a holder dies with, and the kind that is waited for.
type mortal struct{ held, wanted kind }

var mortals = []mortal{{mutex, mutex}, {write, read}, {read, write}, {permit(1), permit(1)}, {multi, multi}}

// name is the name of its lock, of all whose names begin with base.
func (m mortal) name(base string) string { return m.held.name(base + "-" + m.held.Java) }

func TestLongJavaDies(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, e *edition) {
		t.Parallel()
		javaDies(t, single(t), e)
	})
}

func javaDies(t *testing.T, d *deployment, e *edition) {
	victim, base := e.jvms.Start(t), interop.NewName(t)
	java := d.javaClient(t, victim, shortLife)
	waits := make(chan struct{}, len(mortals))
	c := d.client(t, &distlock.Options{TTL: life, Observer: &distlock.Observer{Waiting: func(distlock.Event) { waits <- struct{}{} }}})
	var waiters []interop.Waiter
	for _, m := range mortals {
		victim.Thread(m.held.Java).Call("lock", java, m.held.Java, m.name(base)).Wait(t)
		waiters = append(waiters, interop.Wait(t, m.wanted.Lock(c, m.name(base))))
		interop.Await(t, waits, "a waiter for "+m.name(base))
	}
	last := time.Now() // the server hears of the session after that
	victim.Thread("main").Call("nodes", java, "/").Wait(t)
	victim.Kill()
	for i, m := range mortals {
		g := waiters[i].Granted(t)
		freedInTime(t, "Java's "+m.held.Java, last, g.At)
		interop.Give(t, g)
	}
}

// freedInTime expects that a lock was granted when the session of its holder had ended. The server
// heard of that session last at that instant or later.
func freedInTime(t *testing.T, what string, last, granted time.Time) {
	t.Helper()
	took := granted.Sub(last)
	t.Logf("%s was free %v after the last sign of life", what, peers.Round(took))
	if took < shortLife || took > shortLife+grace {
		t.Errorf("%s was granted after %v, want %v", what, took, shortLife)
	}
}

func TestLongGoDies(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, e *edition) {
		t.Parallel()
		goDies(t, single(t), e)
	})
}

func goDies(t *testing.T, d *deployment, e *edition) {
	j, base := e.jvms.Shared(t, 0), interop.NewName(t)
	java := d.javaClient(t, j, life)
	last := time.Now()
	child := interop.StartChild(t, d.url(), "holds", base)
	var calls []*interop.Call
	for _, m := range mortals {
		th := j.Thread("waits-" + m.held.Java)
		calls = append(calls, th.Call("lock", java, m.wanted.Java, m.name(base)))
		th.Parks(t)
	}
	child.Process.Kill()
	died := time.Now()
	for i, m := range mortals {
		at := interop.At(t, calls[i].Wait(t))
		t.Logf("Go's %s was free %v after its death", m.held.Java, peers.Round(at.Sub(died)))
		if at.Sub(last) < shortLife || at.Sub(died) > 2*shortLife+grace {
			t.Errorf("%s was granted %v after its holder had died", m.held.Java, at.Sub(died))
		}
		j.Thread("waits-"+m.held.Java).Call("unlock", java, m.wanted.Java, m.name(base)).Wait(t)
	}
}

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
