package redisson

import (
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/interop"
	"github.com/distlock/distlock/interop/peers"
)

const (
	// shortLife is the life of locks whose holder will die.
	shortLife = 3 * time.Second
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
