package redisson

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

// crowdTTL is the TTL of locks in a crowd, and so the longest that a reader in Java
// sleeps when it has missed the last message.
const crowdTTL = 10 * time.Second

// pairs are two JVMs and two Go clients, all of the deployment.
func pairs(t *testing.T, d *deployment) (all []interop.Pair) {
	t.Helper()
	for i := range 2 {
		j := jvms.Shared(t, i)
		c := interop.Client(t, d.url, &distlock.Options{TTL: crowdTTL})
		all = append(all, interop.Pair{JVM: j, Java: javaClient(t, j, d, crowdTTL), Client: c})
	}
	return all
}

// TestJavaAndGo is the quick one: the two keep each other out of a lock, and wake each other.
func TestJavaAndGo(t *testing.T) {
	foreignStays(t, single(t), plain)
	wakeUps(t, single(t), plain, 10)
}

func TestLongTurnsAlone(t *testing.T) {
	for _, k := range []kind{plain, fenced, write} {
		t.Run(k.Java, func(t *testing.T) { turnsAlone(t, single(t), k, 2, 150) })
	}
	t.Run("multi", func(t *testing.T) { turnsAlone(t, single(t), multi, 1, 100) })
}

func turnsAlone(t *testing.T, d *deployment, k kind, threads, turns int) {
	base := interop.NewName(t)
	interop.Exclude(t, pairs(t, d), k.name(base), party(k, threads, turns))
	d.leaves(t, base, k.left(base)...)
}

func TestLongTurnsOfReadersAndWriters(t *testing.T) { turnsShared(t, single(t)) }

func turnsShared(t *testing.T, d *deployment) {
	name := interop.NewName(t)
	interop.ExcludeWriters(t, pairs(t, d), name, party(write, 1, 100), party(read, 2, 100))
	d.leaves(t, name, read.left(name)...)
}

func TestLongTurnsOfPermits(t *testing.T) { turnsCounted(t, single(t)) }

func turnsCounted(t *testing.T, d *deployment) {
	name, three := interop.NewName(t), permit(3)
	three.prepare(t, jvms.Shared(t, 0).Thread("main"), javaClient(t, jvms.Shared(t, 0), d, lease), name)
	interop.Admit(t, pairs(t, d), name, party(three, 3, 80))
	d.leaves(t, name, three.left(name)...)
}
