package curator

import (
	"testing"

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
