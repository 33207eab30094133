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
)

// How visits are shared.
const (
	Alone   = "alone"
	Reading = "reading"
	Counted = "counted"
)

// Kind is a kind of lock, as both sides know it.
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

// Party is who takes turns: some threads in each JVM, and as many goroutines with each Go
// client.
type Party struct {
	Kind    Kind
	Threads int
	Turns   int // of each
}

// Play lets everybody take their turns, and returns how many there were and what the
// ledger says of them.
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
			wg.Go(func() { raise(&ours, takeTurns(ctx, t, x.Client, p, name, l)) })
		}
	}
	for _, c := range calls {
		raise(&javas, time.Duration(At(t, c.Wait(t)).UnixNano()))
	}
	wg.Wait()
	b = l.close(t)
	t.Logf("%d turns in %v: the side changed %d times, %d were together with others, the longest waits were %v in Go and %v in Java",
		turns, Since(start), b.Turnovers, b.Together, Round(time.Duration(ours.Load())), Round(time.Duration(javas.Load())))
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

func raise(longest *atomic.Int64, d time.Duration) {
	for old := longest.Load(); int64(d) > old && !longest.CompareAndSwap(old, int64(d)); old = longest.Load() {
	}
}

// Round is a duration as the log shows it.
func Round(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }

// Since is the rounded time since an instant.
func Since(start time.Time) time.Duration { return Round(time.Since(start)) }

// Exclude lets a party take turns, and expects that nobody meets anybody.
func Exclude(t *testing.T, pairs []Pair, name string, p Party) {
	t.Helper()
	turns, b := Play(t, pairs, name, NewLedger(t, 1), p)
	b.isClean(t, turns)
	if b.Turnovers < 2 {
		t.Errorf("the side changed %d times", b.Turnovers)
	}
}

// ExcludeWriters expects that nobody meets a writer, and that readers meet readers.
func ExcludeWriters(t *testing.T, pairs []Pair, name string, writers, readers Party) {
	t.Helper()
	_, b := Play(t, pairs, name, NewLedger(t, 1), writers, readers)
	b.isClean(t, 2*len(pairs)*writers.Threads*writers.Turns)
	b.metEachOther(t)
}

// Admit expects that no more are inside than a semaphore's permits, and that some meet.
func Admit(t *testing.T, pairs []Pair, name string, p Party) {
	t.Helper()
	turns, b := Play(t, pairs, name, NewLedger(t, p.Kind.Limit), p)
	b.isClean(t, turns)
	b.metEachOther(t)
}

// isClean expects no complaints and so many visits.
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
