//go:build unix

package served

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/httplock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
	"github.com/distlock/distlock/internal/testkit/exclusion"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/distlock/distlock/internal/wait"
)

// turns is how many holds TestLongFaults has on Redis; on SQLite it has a fourth.
var turns = flag.Int("turns", 15_000, "holds that TestLongFaults has")

// Servers are killed each second and frozen for twice the TTL, and the network loses requests, answers and halves of
// both. There is one holder at a time, fences increase, and nothing stays in the store.
func TestFaults(t *testing.T) {
	t.Parallel()
	fail(t, testserver.SharedRedis(t).URL(), 300*time.Millisecond, 500)
}

func TestLongFaults(t *testing.T) {
	t.Run("redis", func(t *testing.T) {
		fail(t, testserver.SharedRedis(t).URL(), time.Second, *turns)
	})
	t.Run("sqlite", func(t *testing.T) {
		fail(t, "sqlite:"+url.PathEscape(filepath.Join(t.TempDir(), "locks.db")), time.Second, *turns/4)
	})
}

const (
	faultyNames = 100
	workers     = 30 // of each client
	leastRounds = 6  // of faults
)

// campaign has clients that compete for locks while servers and connections fail.
type campaign struct {
	t       *testing.T
	prefix  string // of the locks' names
	ttl     time.Duration
	servers []*remote
	proxies []*faultproxy.Proxy // of each server
	check   *exclusion.Checker
	rounds  atomic.Int32 // of faults

	mu       sync.Mutex
	outcomes map[string]int // by call and kind
}

func fail(t *testing.T, store string, ttl time.Duration, turns int) {
	c := &campaign{
		t: t, prefix: "faults " + driver.NewOwner() + " ", ttl: ttl, check: exclusion.New(), outcomes: map[string]int{},
	}
	direct := open(t, store)
	for i := range 2 {
		r := startRemote(t, store)
		p := faultproxy.New(t, r.addr)
		p.Late(2 * ttl)
		p.Storm(uint64(i), 0.02, "/v1/")
		c.servers, c.proxies = append(c.servers, r), append(c.proxies, p)
	}
	a, b := c.servers[0].addr, c.servers[1].addr
	viaA, viaB := c.proxies[0].Addr(), c.proxies[1].Addr()
	clients := []*distlock.Client{
		c.client("http://" + viaA + "," + viaB + patient), c.client("http://" + viaB + "," + viaA + patient), c.client("http://" + a + "," + b + patient),
		c.clientOf(open(t, store)),
	}

	began := time.Now()
	ctx, stop := context.WithCancel(t.Context())
	var work, faults sync.WaitGroup
	for i, client := range clients {
		for range workers {
			work.Go(func() { c.compete(ctx, fmt.Sprint("client ", i), client) })
		}
	}
	faults.Go(func() { c.breakAll(ctx) })
	for holds := 0; (holds < turns || c.rounds.Load() < leastRounds || !c.shows()) && !t.Failed(); holds, _ = c.check.Holds() {
		time.Sleep(10 * time.Millisecond)
	}
	took := time.Since(began)
	stop()
	faults.Wait()
	work.Wait()
	for _, client := range clients {
		if err := client.Close(); err != nil && !errors.Is(err, distlock.ErrUnavailable) { // releases without an answer
			t.Error(err)
		}
	}
	c.judge(direct.(driver.Inspector), turns, took)
}

// client returns a client of servers, whose outcomes are counted.
func (c *campaign) client(rawURL string) *distlock.Client {
	b := must.Get(httplock.Open(c.t.Context(), rawURL))(c.t)
	return c.clientOf(observed{b, c})
}

// clientOf returns a client whose every hold is the backend's own: none is handed off in the process.
func (c *campaign) clientOf(b driver.Backend) *distlock.Client {
	client := must.Get(distlock.New(b, &distlock.Options{TTL: c.ttl, HandoffMax: -1}))(c.t)
	return client
}

// observed counts what its callers learn.
type observed struct {
	*httplock.Backend
	c *campaign
}

func (o observed) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	g, err := o.Backend.Acquire(ctx, r)
	o.c.count("acquire", err)
	return g, err
}

func (o observed) Renew(ctx context.Context, holds []driver.Hold) []error {
	errs := o.Backend.Renew(ctx, holds)
	for _, err := range errs {
		o.c.count("renew", err)
	}
	return errs
}

func (o observed) Release(ctx context.Context, h driver.Hold) error {
	err := o.Backend.Release(ctx, h)
	o.c.count("release", err)
	return err
}

func (c *campaign) count(call string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.outcomes[call+" "+string(httpwire.KindOf(err))]++
}

// compete takes locks until ctx ends. Most holds are short; some must be renewed through the faults.
func (c *campaign) compete(ctx context.Context, who string, client *distlock.Client) {
	for ctx.Err() == nil {
		d := rand.N(2 * time.Millisecond)
		if rand.IntN(25) == 0 {
			d = c.ttl/2 + rand.N(2*c.ttl)
		}
		c.check.Hold(ctx, who, client.Mutex(c.prefix+fmt.Sprint(rand.IntN(faultyNames))), d) // fails when ctx ends, or no server answers
	}
}

// breakAll lets servers and connections fail in rounds, until ctx ends. In each round one server is killed and
// restarted. In two of four the other one is frozen, and in the second of these half of the connections are silent,
// or now and then all of them, so that holds are lost.
func (c *campaign) breakAll(ctx context.Context) {
	for ; ctx.Err() == nil && !c.t.Failed(); c.rounds.Add(1) {
		round := c.rounds.Load()
		mortal, other := c.servers[round/4%2], c.servers[1-round/4%2]
		switch round % 4 {
		case 1:
			other.signal(syscall.SIGSTOP)
		case 2:
			for _, p := range c.proxies {
				p.Sever(func(net.Conn) bool { return round%8 == 2 || rand.IntN(2) == 0 })
			}
		case 3:
			c.heal(other)
		}
		err := mortal.kill()
		wait.Sleep(ctx, c.ttl/5)
		if err = errors.Join(err, mortal.start()); err != nil {
			c.t.Error(err)
		}
		wait.Sleep(ctx, c.ttl*4/5)
	}
	c.heal(c.servers...)
}

func (c *campaign) heal(frozen ...*remote) {
	for _, r := range frozen {
		r.signal(syscall.SIGCONT)
	}
	for _, p := range c.proxies {
		p.Pass()
	}
}

// judge checks the holds, and that the store is empty once the requests that were held back have arrived.
func (c *campaign) judge(store driver.Inspector, atLeast int, took time.Duration) {
	t := c.t
	t.Helper()
	lost := int64(0)
	for _, p := range c.proxies {
		p.Deliver()
		lost += p.Lost()
	}
	began := time.Now()
	eventually(t, "the store is empty", func() bool {
		left := 0
		err := store.List(t.Context(), c.prefix, func(string) bool { left++; return true })
		return err == nil && left == 0
	})
	c.check.Judge(t, atLeast)
	t.Logf("took %v; the store was empty %v after the end", took.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	c.mu.Lock() // a release without an answer is retried still
	defer c.mu.Unlock()
	t.Logf("%d servers killed, %d messages lost, outcomes: %v", c.rounds.Load(), lost, c.outcomes)
}

// shows reports whether the faults were enough to show anything.
func (c *campaign) shows() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.outcomes["acquire unknown"] > 0 && c.outcomes["renew unknown"] > 0
}

// remote is a server in a process of its own. One goroutine at a time may use it.
type remote struct {
	store, addr string
	cmd         *exec.Cmd
}

func startRemote(t *testing.T, store string) *remote {
	t.Helper()
	r := &remote{store: store, addr: testserver.FreeAddr(t)}
	must.OK(t, r.start())
	t.Cleanup(func() {
		expect.OK(t, r.kill())
	})
	return r
}

// start starts the process, and returns once it listens.
func (r *remote) start() error {
	r.cmd = exec.Command(os.Args[0])
	r.cmd.Env = append(os.Environ(), childEnv+"="+r.store+" "+r.addr, "GORACE=halt_on_error=1 "+os.Getenv("GORACE"))
	r.cmd.Stderr = os.Stderr
	out, err := r.cmd.StdoutPipe()
	if err == nil {
		err = testserver.Spawn(r.cmd)
	}
	if err != nil {
		return err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if strings.TrimSpace(line) != r.addr {
		return fmt.Errorf("a server says %q: %w", line, err)
	}
	return nil
}

// kill ends the process. It returns an error if that has ended by itself, by a panic or a race.
func (r *remote) kill() error {
	r.cmd.Process.Kill()
	if err := r.cmd.Wait(); r.cmd.ProcessState.Exited() {
		return fmt.Errorf("a server has ended by itself: %w", err)
	}
	return nil
}

func (r *remote) signal(s syscall.Signal) { r.cmd.Process.Signal(s) }
