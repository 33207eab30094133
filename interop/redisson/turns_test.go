package redisson

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock"
)

// party is who takes turns: some threads in each of two JVMs, and as many goroutines
// with each of two Go clients.
type party struct {
	kind    kind
	threads int
	turns   int // of each
}

// turnLife is the life of locks in a crowd, and so the longest that a reader in Java
// sleeps when it has missed the last message.
const turnLife = 10 * time.Second

// pair is a JVM and a Go client, both connected.
type pair struct {
	j           *jvm
	java, books string // Java's clients: of the deployment and for the ledger
	c           *distlock.Client
}

func newPair(t *testing.T, d *deployment, i int) pair {
	t.Helper()
	j := sharedJVM(t, i)
	return pair{j, j.client(t, d, turnLife), j.client(t, single(t), lease), d.client(t, &distlock.Options{TTL: turnLife})}
}

// play lets everybody take their turns, and returns how many there were and what the
// ledger says of them.
func play(t *testing.T, d *deployment, name string, l *ledger, parties ...party) (turns int, b book) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	pairs := []pair{newPair(t, d, 0), newPair(t, d, 1)}
	start := time.Now()
	var wg sync.WaitGroup
	var calls []*call
	var ours, javas atomic.Int64 // longest waits
	for i, p := range slices.Repeat(parties, len(pairs)) {
		x := pairs[i/len(parties)]
		for n := range p.threads {
			turns += 2 * p.turns
			calls = append(calls, x.j.thread(fmt.Sprintf("turns-%d-%d", i, n)).call("turns", x.java, p.kind.java, name,
				strconv.Itoa(p.turns), x.books, l.name, strconv.Itoa(l.limit)))
			wg.Go(func() { raise(&ours, takeTurns(ctx, t, x.c, p, name, l)) })
		}
	}
	for _, c := range calls {
		raise(&javas, time.Duration(at(t, c.wait(t)).UnixNano()))
	}
	wg.Wait()
	b = l.close(t)
	t.Logf("%d turns in %v: the side changed %d times, %d were together with others, the longest waits were %v in Go and %v in Java",
		turns, since(start), b.turnovers, b.together, round(ours.Load()), round(javas.Load()))
	return turns, b
}

// takeTurns returns the longest wait.
func takeTurns(ctx context.Context, t *testing.T, c *distlock.Client, p party, name string, l *ledger) (longest time.Duration) {
	lock := p.kind.lock(c, name)
	for range p.turns {
		start := time.Now()
		h, err := lock.lock(ctx)
		if err != nil {
			t.Error(err)
			return longest
		}
		longest = max(longest, time.Since(start))
		l.visit(ctx, p.kind, fenceOf(h))
		if err := h.Unlock(ctx); err != nil {
			t.Error(err)
		}
	}
	return longest
}

func raise(longest *atomic.Int64, d time.Duration) {
	for old := longest.Load(); int64(d) > old && !longest.CompareAndSwap(old, int64(d)); old = longest.Load() {
	}
}

func round(ns int64) time.Duration        { return time.Duration(ns).Round(10 * time.Microsecond) }
func since(start time.Time) time.Duration { return round(int64(time.Since(start))) }

func complainNot(t *testing.T, b book) {
	t.Helper()
	for i, c := range b.complaints {
		if i == 5 {
			t.Errorf("… %d complaints", len(b.complaints))
			break
		}
		t.Error(c)
	}
}

func TestTurnsAlone(t *testing.T) {
	for _, p := range []party{{plain, 2, 150}, {fenced, 2, 150}, {write, 2, 150}, {multi, 1, 100}} {
		t.Run(p.kind.java, func(t *testing.T) { turnsAlone(t, single(t), p) })
	}
}

func turnsAlone(t *testing.T, d *deployment, p party) {
	base := newName(t)
	exclude(t, d, base, p)
	d.leaves(t, base, p.kind.left(base)...)
}

// exclude expects that nobody meets anybody.
func exclude(t *testing.T, d *deployment, base string, p party) {
	t.Helper()
	turns, b := play(t, d, p.kind.name(base), newLedger(t, 1), p)
	complainNot(t, b)
	if b.count != uint64(turns) {
		t.Errorf("%d turns were counted, want %d", b.count, turns)
	}
	if b.turnovers < 2 {
		t.Errorf("the side changed %d times", b.turnovers)
	}
}

func TestTurnsOfReadersAndWriters(t *testing.T) { turnsShared(t, single(t)) }

func turnsShared(t *testing.T, d *deployment) {
	name := newName(t)
	writers, readers := party{write, 1, 100}, party{read, 2, 100}
	_, b := play(t, d, name, newLedger(t, 1), writers, readers)
	complainNot(t, b)
	if want := uint64(4 * writers.turns); b.count != want {
		t.Errorf("%d writes were counted, want %d", b.count, want)
	}
	if b.together == 0 {
		t.Error("no two readers were inside together")
	}
	d.leaves(t, name, read.left(name)...)
}

func TestTurnsOfPermits(t *testing.T) { turnsCounted(t, single(t)) }

func turnsCounted(t *testing.T, d *deployment) {
	name, three := newName(t), permit(3)
	three.prepare(t, sharedJVM(t, 0).thread("main"), sharedJVM(t, 0).client(t, d, lease), name)
	turns, b := play(t, d, name, newLedger(t, 3), party{three, 3, 80})
	complainNot(t, b)
	if b.count != uint64(turns) {
		t.Errorf("%d turns were counted, want %d", b.count, turns)
	}
	if b.together == 0 {
		t.Error("no two were inside together")
	}
	d.leaves(t, name, three.left(name)...)
}
