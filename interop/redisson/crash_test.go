package redisson

import (
	"errors"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/interop"
	"github.com/distlock/distlock/interop/peers"
)

const (
	// shortLife is the life of locks whose holder will die.
	shortLife = 5 * time.Second
	// grace is the time that a busy machine may add: much, and less than the default life of
	// locks.
	grace = 20 * time.Second
)

// mortal is a kind of lock that a holder dies with, and the kind that is waited for.
type mortal struct{ held, wanted kind }

var mortals = []mortal{
	{plain, plain}, {fenced, fenced}, {fair, fair}, {write, read}, {read, write}, {permit(1), permit(1)}, {multi, multi},
}

// name is the name of its lock, of all whose names begin with base.
func (m mortal) name(base string) string { return m.held.name(base + "-" + m.held.Java) }

// life is its life in Java: 0 if it is renewed.
func (m mortal) life() time.Duration {
	if m.held.Java == "permit" {
		return shortLife
	}
	return 0
}

func TestLongJavaDies(t *testing.T) { javaDies(t, single(t)) }

func javaDies(t *testing.T, d *deployment) {
	victim, base := jvms.Start(t), interop.NewName(t)
	java := javaClient(t, victim, d, shortLife)
	waiting := make(chan struct{}, len(mortals))
	c := interop.Client(t, d.url, &distlock.Options{Observer: &distlock.Observer{Waiting: func(distlock.Event) { waiting <- struct{}{} }}})
	var replies [][]string
	var waiters []interop.Waiter
	for _, m := range mortals {
		name, th := m.name(base), victim.Thread(m.held.Java)
		m.held.prepare(t, th, java, name)
		replies = append(replies, th.Call(m.held.javaLock(java, name, m.life())...).Wait(t))
		waiters = append(waiters, interop.Wait(t, m.wanted.Lock(c, name)))
		interop.Await(t, waiting, "a waiter for "+name)
	}
	victim.Kill()
	died := time.Now()
	var granted []time.Time
	for i, m := range mortals {
		g := waiters[i].Granted(t)
		granted = append(granted, g.At)
		if m.held.Java == "fenced" && interop.Fence(g.Hold) <= token(t, replies[i]) {
			t.Errorf("fence %d came after token %v", interop.Fence(g.Hold), replies[i])
		}
		interop.Give(t, g)
	}
	freedByTTL(t, died, granted)
	leftByTheDead(t, d, base)
}

// freedByTTL expects that every lock is granted in time after its holder's death; a
// permit, which was not renewed, may have ended before.
func freedByTTL(t *testing.T, died time.Time, granted []time.Time) {
	t.Helper()
	early := 0
	for _, at := range granted {
		took := at.Sub(died)
		t.Logf("a lock was free %v after its holder had died", peers.Round(took))
		if took < 0 {
			early++
		}
		if took > shortLife+grace {
			t.Errorf("a lock was granted %v after its holder had died, want %v", took, shortLife)
		}
	}
	if early > 1 {
		t.Errorf("%d locks were granted before their holder died", early)
	}
}

func leftByTheDead(t *testing.T, d *deployment, base string) {
	t.Helper()
	var left []string
	for _, m := range mortals {
		left = append(left, m.held.left(base+"-"+m.held.Java)...)
	}
	d.leaves(t, base, left...)
}

func TestLongGoDies(t *testing.T) { goDies(t, single(t)) }

func goDies(t *testing.T, d *deployment) {
	j, base := jvms.Shared(t, 0), interop.NewName(t)
	java := javaClient(t, j, d, lease)
	for _, m := range mortals {
		m.held.prepare(t, j.Thread("main"), java, m.name(base))
	}
	child := interop.StartChild(t, d.url, "holds", base)
	var granted []time.Time
	var calls []*interop.Call
	for _, m := range mortals {
		name := m.name(base)
		th := j.Thread("waits-" + m.held.Java)
		calls = append(calls, th.Call(m.wanted.javaLock(java, name, lease)...))
		th.Parks(t)
	}
	child.Process.Kill()
	died := time.Now()
	for i, m := range mortals {
		name := m.name(base)
		reply := calls[i].Wait(t)
		granted = append(granted, interop.At(t, reply))
		j.Thread("waits-" + m.held.Java).Call(m.wanted.javaUnlock(java, name, reply)...).Wait(t)
	}
	freedByTTL(t, died, granted)
	leftByTheDead(t, d, base)
}

// renewable are the kinds of locks that Java's watchdog renews too; one waits for each.
var renewable = mortals[:5]

// A lock that one side renews is not granted to the other until its release.
func TestLongRenewedLocksStay(t *testing.T) { renewedStay(t, single(t)) }

func renewedStay(t *testing.T, d *deployment) {
	j := jvms.Shared(t, 0)
	java, base := javaClient(t, j, d, shortLife), interop.NewName(t)
	c := interop.Client(t, d.url, &distlock.Options{TTL: shortLife})
	ends := time.Now().Add(2 * shortLife)
	var releases []func()
	for _, m := range renewable {
		releases = append(releases,
			javaRenews(t, m, m.name(base+"-java"), j.Thread("holds-"+m.held.Java), java, c),
			goRenews(t, m, m.name(base+"-go"), j.Thread("waits-"+m.held.Java), java, c))
	}
	time.Sleep(time.Until(ends)) // twice the life of locks without renewal
	for _, release := range releases {
		release()
	}
}

// javaRenews makes a Java thread hold a lock, and Go wait for it until it is released.
func javaRenews(t *testing.T, m mortal, name string, th *interop.Thread, java string, c *distlock.Client) (release func()) {
	held := th.Call(m.held.javaLock(java, name, 0)...).Wait(t)
	waiter := interop.Wait(t, m.wanted.Lock(c, name))
	return func() {
		called := interop.At(t, th.Call(m.held.javaUnlock(java, name, held)...).Wait(t))
		g := waiter.Granted(t)
		stayed(t, "java", m, called, g.At)
		interop.Give(t, g)
	}
}

// goRenews is the same with the roles exchanged.
func goRenews(t *testing.T, m mortal, name string, th *interop.Thread, java string, c *distlock.Client) (release func()) {
	h := interop.Take(t, m.held.Lock(c, name))
	waits := th.Call(m.wanted.javaLock(java, name, 0)...)
	return func() {
		called := time.Now()
		interop.Give(t, h)
		reply := waits.Wait(t)
		stayed(t, "go", m, called, interop.At(t, reply))
		th.Call(m.wanted.javaUnlock(java, name, reply)...).Wait(t)
	}
}

// stayed expects that a lock was not granted before its release, as it would be if no client had
// renewed it.
func stayed(t *testing.T, side string, m mortal, released, granted time.Time) {
	t.Helper()
	if granted.Before(released) {
		t.Errorf("%s held by %s was granted %v before its release", m.held.Java, side, released.Sub(granted))
	}
}

// A name is one kind of lock. The Go side refuses a name that Java uses for another kind.
func TestLongKindsAreToldApart(t *testing.T) {
	family := map[string]int{"lock": 1, "write": 2, "read": 2, "permit": 3}
	kinds := []kind{plain, write, read, permit(2)}
	for _, javas := range kinds {
		s := newFixture(t, single(t), javas, nil)
		held := s.javaLocks(t, s.th)
		for _, ours := range kinds {
			_, err := ours.Lock(s.c, s.name).Try(t.Context())
			if family[ours.Java] != family[javas.Java] && !errors.Is(err, distlock.ErrInvalid) {
				t.Errorf("%s of Java is %s for Go: %v", javas.Java, ours.Java, err)
			}
		}
		s.javaUnlocks(s.th, held).Wait(t)
	}
}
