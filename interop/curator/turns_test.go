package curator

import (
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/interop"
)

// party returns threads on both sides that take turns.
func party(k kind, threads, turns int) interop.Party {
	return interop.Party{Kind: k.Kind, Threads: threads, Turns: turns}
}

// crowd are a JVM with each of some versions of Curator, and as many Go clients.
func crowd(t *testing.T, d *deployment, editions ...*edition) (all []interop.Pair) {
	t.Helper()
	for _, e := range editions {
		j := e.jvms.Shared(t, 0)
		all = append(all, interop.Pair{JVM: j, Java: d.javaClient(t, j, life), Client: d.client(t, &distlock.Options{TTL: life})})
	}
	return all
}

func TestTurns(t *testing.T) { turnsAlone(t, single(t), mutex, 2, 30, current) }

func TestLongTurnsAlone(t *testing.T) {
	for _, k := range []kind{mutex, write, lone} {
		t.Run(k.Java, func(t *testing.T) { turnsAlone(t, single(t), k, 2, 150, editions...) })
	}
	t.Run("multi", func(t *testing.T) { turnsAlone(t, single(t), multi, 1, 100, editions...) })
}

func turnsAlone(t *testing.T, d *deployment, k kind, threads, turns int, editions ...*edition) {
	s := newFixture(t, d, current, k)
	interop.Exclude(t, crowd(t, d, editions...), s.name, party(k, threads, turns))
	s.leavesNothing(t)
}

func TestLongTurnsOfReadersAndWriters(t *testing.T) { turnsShared(t, single(t), 100) }

func turnsShared(t *testing.T, d *deployment, turns int) {
	s := newFixture(t, d, current, write)
	interop.ExcludeWriters(t, crowd(t, d, editions...), s.name, party(write, 1, turns), party(read, 2, turns))
	s.leavesNothing(t)
}

func TestLongTurnsOfPermits(t *testing.T) { turnsCounted(t, single(t), 80) }

func turnsCounted(t *testing.T, d *deployment, turns int) {
	s := newFixture(t, d, current, permit(3))
	interop.Admit(t, crowd(t, d, editions...), s.name, party(permit(3), 3, turns))
	s.leavesNothing(t)
}

// A waiter on one side is woken by a release on the other.
func TestLongWakeUps(t *testing.T) {
	each(t, func(t *testing.T, e *edition) {
		for _, k := range []kind{mutex, write, read, permit(1)} {
			t.Run(k.Java, func(t *testing.T) { wakeUps(t, single(t), e, k, 40) })
		}
	})
}

func wakeUps(t *testing.T, d *deployment, e *edition, k kind, rounds int) {
	w := newWake(t, d, e, k)
	w.toGo() // to warm up
	w.toJava()
	var toGo, toJava []time.Duration
	for range rounds {
		toGo = append(toGo, w.toGo())
		toJava = append(toJava, w.toJava())
	}
	interop.Judge(t, "Java's release woke Go", toGo)
	interop.Judge(t, "Go's release woke Java", toJava)
}

// wake is a lock that is passed between a Java thread and a Go client.
type wake struct {
	*fixture
	t      *testing.T
	waits  chan struct{} // Go has begun to wait
	holder kind          // what the holder takes: a reader waits for a writer
}

func newWake(t *testing.T, d *deployment, e *edition, k kind) *wake {
	w := &wake{fixture: newFixture(t, d, e, k), t: t, waits: make(chan struct{}, 1), holder: k.excludes()}
	w.c = d.client(t, &distlock.Options{TTL: life, Observer: &distlock.Observer{Waiting: func(distlock.Event) { w.waits <- struct{}{} }}})
	w.lock = k.Lock(w.c, w.name)
	return w
}

// toGo is the time from Java's release until a Go client that waits has the lock.
func (w *wake) toGo() time.Duration {
	w.onKind(w.th, w.holder, "lock").Wait(w.t)
	waiter := interop.Wait(w.t, w.lock)
	interop.Await(w.t, w.waits, "a waiter in Go")
	called := interop.At(w.t, w.onKind(w.th, w.holder, "unlock").Wait(w.t))
	g := waiter.Granted(w.t)
	interop.Give(w.t, g)
	return g.At.Sub(called)
}

// toJava is the time from Go's release until a Java thread that waits has the lock.
func (w *wake) toJava() time.Duration {
	h := interop.Take(w.t, w.holder.Lock(w.c, w.name))
	waiter := w.on(w.th, "lock")
	w.th.Parks(w.t)
	called := time.Now()
	interop.Give(w.t, h)
	held := waiter.Wait(w.t)
	w.on(w.th, "unlock").Wait(w.t)
	return interop.At(w.t, held).Sub(called)
}
