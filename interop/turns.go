package interop

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/internal/testkit/testserver"
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

// Play runs all parties, and returns the number of turns and the checker's record.
func Play(t *testing.T, pairs []Pair, name string, l *Checker, parties ...Party) (turns int, b Record) {
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
func takeTurns(ctx context.Context, t *testing.T, c *distlock.Client, p Party, name string, l *Checker) (longest time.Duration) {
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

// Exclude runs a party, and expects that no holds overlap.
func Exclude(t *testing.T, pairs []Pair, name string, p Party) {
	t.Helper()
	turns, b := Play(t, pairs, name, NewChecker(t, 1), p)
	b.isClean(t, turns)
	if b.Turnovers < 2 {
		t.Errorf("the side changed %d times", b.Turnovers)
	}
}

// ExcludeWriters expects that no hold overlaps a writer's, and that readers overlap.
func ExcludeWriters(t *testing.T, pairs []Pair, name string, writers, readers Party) {
	t.Helper()
	_, b := Play(t, pairs, name, NewChecker(t, 1), writers, readers)
	b.isClean(t, 2*len(pairs)*writers.Threads*writers.Turns)
	b.metEachOther(t)
}

// Admit expects that no more than a semaphore's permits overlap, and that some do.
func Admit(t *testing.T, pairs []Pair, name string, p Party) {
	t.Helper()
	turns, b := Play(t, pairs, name, NewChecker(t, p.Kind.Limit), p)
	b.isClean(t, turns)
	b.metEachOther(t)
}

// isClean expects no complaints, and this number of visits.
func (r Record) isClean(t *testing.T, visits int) {
	t.Helper()
	for i, c := range r.Complaints {
		if i == 5 {
			t.Errorf("… %d complaints", len(r.Complaints))
			break
		}
		t.Error(c)
	}
	if r.Count != uint64(visits) {
		t.Errorf("%d visits were counted, want %d", r.Count, visits)
	}
}

func (r Record) metEachOther(t *testing.T) {
	t.Helper()
	if r.Together == 0 {
		t.Error("no two were inside together")
	}
}

// poll is below the interval at which a Go client polls.
const poll = 400 * time.Millisecond

// idle is how late a goroutine mostly runs at most where a waiter that was woken has the lock before it would have polled.
const idle = 5 * time.Millisecond

// Judge expects that all waiters were woken promptly, and most of them before they would have polled, unless the machine is busy.
func Judge(t *testing.T, what string, took []time.Duration) {
	t.Helper()
	p50, longest := peers.Quantiles(t, what, took)
	if longest > Prompt {
		t.Errorf("%s after %v; want less than %v", what, longest, Prompt)
	}
	if p50 <= poll {
		return
	}
	if late := lateness(); late < idle {
		t.Errorf("half of them after %v, where goroutines run %v late; want less than %v", p50, late, poll)
	} else {
		t.Logf("half of them after %v, where goroutines run %v late: the machine is too busy to tell", p50, late)
	}
}

// lateness returns how late nine of ten goroutines run at most that are due.
func lateness() time.Duration {
	var late []time.Duration
	for range 200 {
		start := time.Now()
		time.Sleep(time.Millisecond)
		late = append(late, time.Since(start)-time.Millisecond)
	}
	slices.Sort(late)
	return late[len(late)*9/10]
}

// Checker detects overlapping holds. A visitor counts itself in and out, checks for others, and increments
// a number by a read and a write. Checker.java does the same with the same keys of the shared Redis.
type Checker struct {
	c     *redis.Client
	name  string
	limit int
}

// NewChecker makes a checker that admits up to limit counted visitors at once.
func NewChecker(t *testing.T, limit int) *Checker {
	// What is counted must not be repeated.
	c := redis.NewClient(&redis.Options{Addr: testserver.SharedRedis(t).Addr(), DialTimeout: Patience, ReadTimeout: Patience, WriteTimeout: Patience, MaxRetries: -1})
	t.Cleanup(func() { c.Close() })
	return &Checker{c, "checker:" + NewName(t), limit}
}

// words names the checker to Java.
func (c *Checker) words() []string {
	host, port, _ := net.SplitHostPort(c.c.Options().Addr)
	return []string{host, port, c.name, strconv.Itoa(c.limit)}
}

func (c *Checker) key(name string) string { return c.name + ":" + name }

func (c *Checker) number(ctx context.Context, name string) uint64 {
	n, _ := c.c.Get(ctx, c.key(name)).Uint64()
	return n
}

func (c *Checker) expect(ctx context.Context, kept bool, format string, args ...any) {
	if !kept {
		c.c.RPush(ctx, c.key("complaints"), "go: "+fmt.Sprintf(format, args...))
	}
}

// alone is an exclusive visit.
func (c *Checker) alone(ctx context.Context, token uint64) {
	c.expect(ctx, c.c.Incr(ctx, c.key("inside")).Val() == 1, "another was inside")
	c.expect(ctx, c.number(ctx, "readers") == 0, "a reader was inside")
	before := c.number(ctx, "count")
	if token > 0 {
		last := c.number(ctx, "fence")
		c.expect(ctx, token > last, "token %d came after %d", token, last)
		c.c.Set(ctx, c.key("fence"), token, 0)
	}
	if c.c.SetArgs(ctx, c.key("side"), "go", redis.SetArgs{Get: true}).Val() != "go" {
		c.c.Incr(ctx, c.key("turnovers"))
	}
	c.c.Set(ctx, c.key("count"), before+1, 0)
	c.c.Decr(ctx, c.key("inside"))
}

// reading is a visit that readers share.
func (c *Checker) reading(ctx context.Context) {
	if c.c.Incr(ctx, c.key("readers")).Val() > 1 {
		c.c.Incr(ctx, c.key("together"))
	}
	c.expect(ctx, c.number(ctx, "inside") == 0, "a writer was inside")
	before := c.number(ctx, "count")
	c.expect(ctx, before == c.number(ctx, "count"), "the count changed while it was read")
	c.c.Decr(ctx, c.key("readers"))
}

// counted is a visit of a limited number of visitors.
func (c *Checker) counted(ctx context.Context) {
	n := c.c.Incr(ctx, c.key("inside")).Val()
	c.expect(ctx, n <= int64(c.limit), "%d were inside", n)
	if n > 1 {
		c.c.Incr(ctx, c.key("together"))
	}
	time.Sleep(5 * time.Millisecond) // so that visits overlap
	c.c.Incr(ctx, c.key("count"))
	c.c.Decr(ctx, c.key("inside"))
}

func (c *Checker) visit(ctx context.Context, sharing string, token uint64) {
	switch sharing {
	case Reading:
		c.reading(ctx)
	case Counted:
		c.counted(ctx)
	default:
		c.alone(ctx, token)
	}
}

// Record is the record of a checker.
type Record struct {
	Count      uint64   // all visits that increment
	Turnovers  uint64   // exclusive visits by another side than the last
	Together   uint64   // visits that overlapped another
	Complaints []string // violations
}

func (c *Checker) close(t *testing.T) Record {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	b := Record{c.number(ctx, "count"), c.number(ctx, "turnovers"), c.number(ctx, "together"), c.c.LRange(ctx, c.key("complaints"), 0, -1).Val()}
	for _, name := range []string{"inside", "readers", "count", "fence", "turnovers", "together", "side", "complaints"} {
		if err := c.c.Del(ctx, c.key(name)).Err(); err != nil {
			t.Fatal(err)
		}
	}
	return b
}
