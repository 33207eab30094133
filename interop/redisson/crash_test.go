package redisson

import (
	"testing"
	"time"

	"github.com/distlock/distlock"
)

const (
	// shortLife is the life of locks whose holder will die.
	shortLife = 1500 * time.Millisecond
	// grace is what a busy machine may add.
	grace = 2 * time.Second
)

// mortal is a kind of lock that a holder dies with, and what somebody waits for.
type mortal struct{ held, wanted kind }

var mortals = []mortal{
	{plain, plain}, {fenced, fenced}, {fair, fair}, {write, read}, {read, write}, {permit(1), permit(1)}, {multi, multi},
}

// name is the name of its lock, of all whose names begin with base.
func (m mortal) name(base string) string { return m.held.name(base + "-" + m.held.java) }

// life is its life in Java: 0 if it is renewed.
func (m mortal) life() time.Duration {
	if m.held.java == "permit" {
		return shortLife
	}
	return 0
}

func TestJavaDies(t *testing.T) { javaDies(t, single(t)) }

func javaDies(t *testing.T, d *deployment) {
	victim, base := startJVM(t), newName(t)
	java := victim.client(t, d, shortLife)
	waiting := make(chan struct{}, len(mortals))
	c := d.client(t, &distlock.Options{Observer: &distlock.Observer{Waiting: func(distlock.Event) { waiting <- struct{}{} }}})
	var replies [][]string
	var waiters []waiter
	for _, m := range mortals {
		name, th := m.name(base), victim.thread(m.held.java)
		m.held.prepare(t, th, java, name)
		replies = append(replies, th.call(m.held.javaLock(java, name, m.life())...).wait(t))
		waiters = append(waiters, startWaiter(t, m.wanted.lock(c, name)))
		select {
		case <-waiting:
		case <-time.After(patience):
			t.Fatalf("nobody waits for %s", name)
		}
	}
	victim.kill()
	died := time.Now()
	var granted []time.Time
	for i, m := range mortals {
		g := waiters[i].granted(t)
		granted = append(granted, g.at)
		if m.held.java == "fenced" && fenceOf(g.hold) <= token(t, replies[i]) {
			t.Errorf("fence %d came after token %v", fenceOf(g.hold), replies[i])
		}
		give(t, g)
	}
	freedByTTL(t, died, granted)
	leftByTheDead(t, d, base)
}

// freedByTTL expects that every lock is granted in time after its holder's death; a
// permit, which nobody renewed, may have ended before.
func freedByTTL(t *testing.T, died time.Time, granted []time.Time) {
	t.Helper()
	early := 0
	for _, at := range granted {
		took := at.Sub(died)
		t.Logf("a lock was free %v after its holder had died", round(int64(took)))
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
		left = append(left, m.held.left(base+"-"+m.held.java)...)
	}
	d.leaves(t, base, left...)
}

func TestGoDies(t *testing.T) { goDies(t, single(t)) }

func goDies(t *testing.T, d *deployment) {
	j, base := sharedJVM(t, 0), newName(t)
	java := j.client(t, d, lease)
	for _, m := range mortals {
		m.held.prepare(t, j.thread("main"), java, m.name(base))
	}
	child := startChild(t, d, "holds", base)
	var granted []time.Time
	var calls []*call
	for _, m := range mortals {
		name := m.name(base)
		th := j.thread("waits-" + m.held.java)
		calls = append(calls, th.call(m.wanted.javaLock(java, name, lease)...))
		th.parks(t)
	}
	child.Process.Kill()
	died := time.Now()
	for i, m := range mortals {
		name := m.name(base)
		reply := calls[i].wait(t)
		granted = append(granted, at(t, reply))
		j.thread("waits-" + m.held.java).call(m.wanted.javaUnlock(java, name, reply)...).wait(t)
	}
	freedByTTL(t, died, granted)
	leftByTheDead(t, d, base)
}
