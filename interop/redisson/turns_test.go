package redisson

import (
	"context"
	"slices"
	"strings"
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

// A waiter on one side is woken by a release on the other.
func TestLongWakeUps(t *testing.T) {
	for _, k := range []kind{plain, write, read, permit(1)} {
		t.Run(k.Java, func(t *testing.T) { wakeUps(t, single(t), k, 40) })
	}
}

func wakeUps(t *testing.T, d *deployment, k kind, rounds int) {
	j := jvms.Shared(t, 0)
	c := interop.Client(t, d.url, &distlock.Options{TTL: lease}) // at the end of a TTL Java would try by itself
	w := &wake{t: t, d: d, k: k, th: j.Thread("wake"), java: javaClient(t, j, d, lease), c: c}
	w.toGo(interop.NewName(t)) // to warm up
	w.toJava(interop.NewName(t))
	var toGo, toJava []time.Duration
	for range rounds {
		toGo = append(toGo, w.toGo(interop.NewName(t)))
		toJava = append(toJava, w.toJava(interop.NewName(t)))
	}
	interop.Judge(t, "Java's unlock woke Go", toGo)
	interop.Judge(t, "Go's unlock woke Java", toJava)
}

// wake is one lock that is passed between a Java thread and a Go client.
type wake struct {
	t    *testing.T
	d    *deployment
	k    kind
	th   *interop.Thread
	java string
	c    *distlock.Client
}

// holder returns the kind that the holder takes: a reader waits for a writer.
func (w *wake) holder() kind {
	if w.k.Java == "read" {
		return write
	}
	return w.k
}

// toGo is the time from Java's unlock until a Go client that waits has the lock.
func (w *wake) toGo(name string) time.Duration {
	w.k.prepare(w.t, w.th, w.java, name)
	held := w.th.Call(w.holder().javaLock(w.java, name, lease)...).Wait(w.t)
	before := w.d.attempts(w.t)
	waiter := interop.Wait(w.t, w.k.Lock(w.c, name))
	w.d.waits(w.t, before, w.d.fan)
	called := interop.At(w.t, w.th.Call(w.holder().javaUnlock(w.java, name, held)...).Wait(w.t))
	g := waiter.Granted(w.t)
	interop.Give(w.t, g)
	return g.At.Sub(called)
}

// toJava is the time from Go's unlock until a Java thread that waits has the lock.
func (w *wake) toJava(name string) time.Duration {
	w.k.prepare(w.t, w.th, w.java, name)
	h := interop.Take(w.t, w.holder().Lock(w.c, name))
	waiter := w.th.Call(w.k.javaLock(w.java, name, lease)...)
	w.th.Parks(w.t)
	called := time.Now()
	interop.Give(w.t, h)
	held := waiter.Wait(w.t)
	w.th.Call(w.k.javaUnlock(w.java, name, held)...).Wait(w.t)
	return interop.At(w.t, held).Sub(called)
}

// nothing is a lock that excludes no client, and has one token for all.
type nothing struct{ interop.Hold }

func (nothing) Unlock(context.Context) error { return nil }
func (nothing) Fence() uint64                { return 7 }

// unguarded is a crowd of visitors without a lock.
func unguarded(sharing string) interop.Party {
	enter := func(context.Context) (interop.Hold, error) { return nothing{}, nil }
	return interop.Party{Threads: 2, Turns: 100, Kind: interop.Kind{
		Java: "nothing-" + sharing, Sharing: sharing,
		Lock: func(*distlock.Client, string) interop.Locker { return interop.Locker{Lock: enter} },
	}}
}

// Without a lock, the checker reports every kind of violation on both sides, and its count is wrong.
func TestLongCheckerComplains(t *testing.T) {
	alone, reading, counted := unguarded(interop.Alone), unguarded(interop.Reading), unguarded(interop.Counted)
	t.Run("alone", func(t *testing.T) {
		complains(t, []interop.Party{alone}, "another was inside", "token 7 came after 7")
	})
	t.Run("reading", func(t *testing.T) {
		complains(t, []interop.Party{alone, reading}, "another was inside", "a reader was inside", "a writer was inside", "the count changed")
	})
	t.Run("counted", func(t *testing.T) {
		complains(t, []interop.Party{counted}, "4 were inside")
	})
}

func complains(t *testing.T, parties []interop.Party, want ...string) {
	turns, b := interop.Play(t, pairs(t, single(t)), "unguarded", interop.NewChecker(t, 3), parties...)
	for _, side := range []string{"go: ", "java: "} {
		for _, w := range want {
			if !slices.ContainsFunc(b.Complaints, func(c string) bool { return strings.HasPrefix(c, side+w) }) {
				t.Errorf("no complaint %q among %d", side+w, len(b.Complaints))
			}
		}
	}
	if parties[0].Kind.Sharing == interop.Alone && b.Count >= uint64(turns/len(parties)) {
		t.Errorf("%d turns of %d were counted without a lock", b.Count, turns)
	}
}
