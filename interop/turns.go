package interop

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
	"github.com/distlock/distlock/interop/peers"
)

// The ways of sharing a lock.
const (
	Alone   = "alone"
	Reading = "reading"
	Counted = "counted"
)

// Kind is a kind of lock that both sides know.
type Kind struct {
	Java    string // Java's word for it
	Sharing string // Alone, Reading or Counted
	Lock    func(c *distlock.Client, name string) Locker
	Limit   int // of a semaphore
}

// Pair is a JVM and a Go client, both connected.
type Pair struct {
	JVM    *JVM
	Java   string // the JVM's client
	Client *distlock.Client
}

// Party is a number of threads in each JVM, and as many goroutines with each Go client.
type Party struct {
	Kind    Kind
	Threads int
	Turns   int // of each
}

// Play runs all parties, and returns the number of turns and the ledger's record.
func Play(t *testing.T, pairs []Pair, name string, l *Ledger, parties ...Party) (turns int, b Book) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	start := time.Now()
	var wg sync.WaitGroup
	var calls []*Call
	var ours, javas atomic.Int64 // longest waits
	for i, p := range slices.Repeat(parties, len(pairs)) {
		x := pairs[i/len(parties)]
		for n := range p.Threads {
			turns += 2 * p.Turns
			words := append([]string{"turns", x.Java, p.Kind.Java, name, strconv.Itoa(p.Turns)}, l.words()...)
			calls = append(calls, x.JVM.Thread(fmt.Sprintf("turns-%d-%d", i, n)).Call(words...))
			wg.Go(func() { peers.Raise(&ours, int64(takeTurns(ctx, t, x.Client, p, name, l))) })
		}
	}
	for _, c := range calls {
		peers.Raise(&javas, At(t, c.Wait(t)).UnixNano())
	}
	wg.Wait()
	b = l.close(t)
	t.Logf("%d turns in %v: the side changed %d times, %d were together with others, the longest waits were %v in Go and %v in Java",
		turns, Since(start), b.Turnovers, b.Together, peers.Round(time.Duration(ours.Load())), peers.Round(time.Duration(javas.Load())))
	return turns, b
}

// takeTurns returns the longest wait.
func takeTurns(ctx context.Context, t *testing.T, c *distlock.Client, p Party, name string, l *Ledger) (longest time.Duration) {
	lock := p.Kind.Lock(c, name)
	for range p.Turns {
		start := time.Now()
		h, err := lock.Lock(ctx)
		if err != nil {
			t.Error(err)
			return longest
		}
		longest = max(longest, time.Since(start))
		l.visit(ctx, p.Kind.Sharing, Fence(h))
		if err := h.Unlock(ctx); err != nil {
			t.Error(err)
		}
	}
	return longest
}

// Since returns the rounded time since start.
func Since(start time.Time) time.Duration { return peers.Round(time.Since(start)) }

// Exclude runs a party, and expects that no holds overlap.
func Exclude(t *testing.T, pairs []Pair, name string, p Party) {
	t.Helper()
	turns, b := Play(t, pairs, name, NewLedger(t, 1), p)
	b.isClean(t, turns)
	if b.Turnovers < 2 {
		t.Errorf("the side changed %d times", b.Turnovers)
	}
}

// ExcludeWriters expects that no hold overlaps a writer's, and that readers overlap.
func ExcludeWriters(t *testing.T, pairs []Pair, name string, writers, readers Party) {
	t.Helper()
	_, b := Play(t, pairs, name, NewLedger(t, 1), writers, readers)
	b.isClean(t, 2*len(pairs)*writers.Threads*writers.Turns)
	b.metEachOther(t)
}

// Admit expects that no more than a semaphore's permits overlap, and that some do.
func Admit(t *testing.T, pairs []Pair, name string, p Party) {
	t.Helper()
	turns, b := Play(t, pairs, name, NewLedger(t, p.Kind.Limit), p)
	b.isClean(t, turns)
	b.metEachOther(t)
}

// isClean expects no complaints, and this number of visits.
func (b Book) isClean(t *testing.T, visits int) {
	t.Helper()
	for i, c := range b.Complaints {
		if i == 5 {
			t.Errorf("… %d complaints", len(b.Complaints))
			break
		}
		t.Error(c)
	}
	if b.Count != uint64(visits) {
		t.Errorf("%d visits were counted, want %d", b.Count, visits)
	}
}

func (b Book) metEachOther(t *testing.T) {
	t.Helper()
	if b.Together == 0 {
		t.Error("no two were inside together")
	}
}

// Prompt bounds the time in which a waiter is woken. Locks end much later by themselves.
const Prompt = 10 * time.Second

// poll is below the interval at which a Go client polls.
const poll = 400 * time.Millisecond

// Judge expects that all waiters were woken promptly, and most of them before they would have polled.
func Judge(t *testing.T, what string, took []time.Duration) {
	t.Helper()
	if p50, longest := peers.Quantiles(t, what, took); longest > Prompt || p50 > poll {
		t.Errorf("%s after %v, and half of them after %v; want less than %v and %v", what, longest, p50, Prompt, poll)
	}
}
