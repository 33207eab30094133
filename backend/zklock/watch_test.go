package zklock

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// requestCounter counts the requests of sessions by their opcodes. Heartbeats do not count.
type requestCounter struct {
	mu sync.Mutex
	n  map[uint32]int
}

const (
	opGetData = 4

	// opMulti is also the opcode of heartbeats; no lock that only waits needs it for anything else.
	opMulti = 14
)

func (c *requestCounter) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	return &countedConn{Conn: conn, counter: c}, err
}

func (c *requestCounter) total() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, count := range c.n {
		n += count
	}
	return n
}

// of returns the number of requests with an opcode.
func (c *requestCounter) of(opcode uint32) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[opcode]
}

// countedConn is a connection on which each Write consists of whole requests.
type countedConn struct {
	net.Conn
	counter *requestCounter
	greeted bool
}

func (c *countedConn) Write(b []byte) (int, error) {
	if c.greeted {
		c.counter.mu.Lock()
		for rest := b; len(rest) >= 12; rest = rest[4+binary.BigEndian.Uint32(rest):] {
			if op := binary.BigEndian.Uint32(rest[8:]); op != opMulti {
				c.counter.n[op]++
			}
		}
		c.counter.mu.Unlock()
	}
	c.greeted = true
	return c.Conn.Write(b)
}

// openCounted opens a backend whose sessions are counted by c.
func openCounted(t *testing.T, c *requestCounter) *Backend {
	b := open(t, testserver.SharedZooKeeper(t).URL())
	b.opts.dial = c.dial
	return b
}

// However many sessions wait, an acquisition takes five requests: create the node and list its
// siblings, watch the node before it; list again when that has ended; delete. Each session gets its
// share.
func TestRequestsOfManyWaiters(t *testing.T) {
	const sessions, rounds = 16, 20
	c := &requestCounter{n: map[uint32]int{}}
	var clients [sessions]*distlock.Client
	for i := range clients {
		clients[i] = must.Get(distlock.New(openCounted(t, c), locktest.Patient()))(t)
		defer clients[i].Close()
	}
	for i, locks := range clients { // all are connected before the first turn
		l := must.Get(locks.Mutex(fmt.Sprint("warm ", i, driver.NewOwner())).Lock(t.Context()))(t)
		must.OK(t, l.Unlock(t.Context()))
	}
	name, holder := "waiters "+driver.NewOwner(), open(t, testserver.SharedZooKeeper(t).URL())
	first, before := request(name, driver.Exclusive), c.total()
	acquire(t, holder, first)
	var left atomic.Int64
	left.Store(sessions * rounds)
	var grants [sessions]int
	var wg sync.WaitGroup
	for i, locks := range clients {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for left.Load() > 0 {
				l, err := locks.Mutex(name).Lock(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				grants[i]++
				left.Add(-1)
				time.Sleep(time.Millisecond)
				expect.OK(t, l.Unlock(t.Context()))
			}
		}()
	}
	op := admin(t)
	eventually(t, "all wait", func() bool { return len(nodes(t, op, pathOf(name))) == sessions+1 })
	release(t, holder, first)
	wg.Wait()
	all := 0
	for _, n := range grants {
		all += n
	}
	// The first acquisition of a client takes more, and so does a wait of a second.
	if n := c.total() - before; n > 8*all+10*sessions { // five, and attempts of waiters that have waited for a second on a busy machine
		t.Errorf("%.1f requests per acquisition, by opcode: %v", float64(n)/float64(all), c.n)
	} else {
		t.Logf("%.2f requests per acquisition, by opcode: %v", float64(n)/float64(all), c.n)
	}
	if slices.Min(grants[:]) < rounds/2 || slices.Max(grants[:]) > 2*rounds {
		t.Errorf("each session gets between half and twice its share: got %v", grants)
	}
}

// A holder that acquires again sends one request, which does not wake the waiters behind it.
func TestRequestsOfARefence(t *testing.T) {
	c := &requestCounter{n: map[uint32]int{}}
	a, b := openCounted(t, c), open(t, testserver.SharedZooKeeper(t).URL())
	r := request("", driver.Exclusive)
	acquire(t, a, r)
	waiter := r
	waiter.Owner = driver.NewOwner()
	refused(t, b, waiter, driver.ErrHeld)
	w := must.Get(b.Watch(t.Context(), waiter))(t)
	defer w.Close()
	before := c.total()
	for range 10 {
		acquire(t, a, r)
	}
	if n := c.total() - before; n < 10 || n >= 20 { // a busy machine may need one more now and then
		t.Errorf("%d requests for ten fences", n)
	}
	refused(t, b, waiter, driver.ErrHeld) // its answer is behind all notifications
	if len(w.Ready) > 0 {
		t.Error("the waiter is woken, and the lock is not free")
	}
	release(t, a, r)
	signalled(t, "the waiter is notified of the release", w.Ready)
	acquire(t, b, waiter)
}

// All in the queue are said to be told of all that lets them in: the end of a session ends its places.
func TestWhoIsSignaled(t *testing.T) {
	b := open(t, testserver.SharedZooKeeper(t).URL())
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Write, driver.Counted} {
		held := request("", mode)
		held.Limit = 1
		must.Get(b.Acquire(t.Context(), held))(t)
		for place := range 2 {
			w := held
			w.Owner = driver.NewOwner()
			for range 2 {
				expect.Equal(t, locktest.Held(t, b, w).Signaled, true, mode, "place", place)
			}
		}
		w := held
		w.Owner, w.Queue = driver.NewOwner(), false
		expect.Equal(t, locktest.Held(t, b, w).Signaled, false, mode, "without a place")
	}
}
