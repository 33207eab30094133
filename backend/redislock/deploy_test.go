package redislock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/backend/redislock/internal/layouts"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/redis/go-redis/v9"
)

// network connects one backend to its servers, through a proxy in front of each.
type network struct {
	t       testing.TB
	mu      sync.Mutex
	proxies map[string]*faultproxy.Proxy
	deaf    bool
}

func newNetwork(t testing.TB) *network {
	return &network{t: t, proxies: map[string]*faultproxy.Proxy{}}
}

func (n *network) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", n.proxy(addr).Addr())
}

func (n *network) proxy(addr string) *faultproxy.Proxy {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.proxies[addr]
	if p == nil {
		p = faultproxy.New(n.t, addr)
		if n.deaf {
			p.Silence()
		}
		n.proxies[addr] = p
	}
	return p
}

func (n *network) cut() (restore func()) {
	n.set(true, func(p *faultproxy.Proxy) { p.Silence() })
	return func() { n.set(false, (*faultproxy.Proxy).Pass) }
}

// loseReplies loses the answers on the routes that are there.
func (n *network) loseReplies() (restore func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return faultproxy.Each(slices.Collect(maps.Values(n.proxies)), (*faultproxy.Proxy).LoseReplies)
}

func (n *network) set(deaf bool, each func(*faultproxy.Proxy)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.deaf = deaf
	for _, p := range n.proxies {
		each(p)
	}
}

// way is how a backend gets to a deployment of several servers.
type way struct {
	name string
	open func(t testing.TB, addrs []string, opts Options, n *network) *Backend
}

var clusterWays = clusterWaysIn(tooLong)

// clusterWaysIn returns the cluster ways with clients that wait up to d for an answer.
func clusterWaysIn(d time.Duration) []way {
	return []way{{"url", func(t testing.TB, addrs []string, opts Options, n *network) *Backend {
		return openThrough(t, fmt.Sprintf("redis+cluster://%s?timeout=%v", strings.Join(addrs, ","), d), opts, n)
	}}, {"go-redis", func(t testing.TB, addrs []string, opts Options, n *network) *Backend {
		c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, Dialer: n.dial, ReadTimeout: d, MaintNotificationsConfig: noUpgrades})
		b, err := NewGoRedis(c, &opts)
		c.Close()
		return opened(t, b, err)
	}}}
}

var sentinelWays = []way{{"url", func(t testing.TB, addrs []string, opts Options, n *network) *Backend {
	return openThrough(t, "redis+sentinel://"+strings.Join(addrs, ",")+"/"+testserver.SentinelName, opts, n)
}}}

func openThrough(t testing.TB, url string, opts Options, n *network) *Backend {
	t.Helper()
	u := must.Get(driver.ParseURL(url))(t)
	to := must.Get(parseURL(u))(t)
	to.server.Dialer = n.dial
	b, err := newBackend(to.connect(), &opts, 0)
	return opened(t, b, err)
}

// conforms runs the suite on a deployment by URL.
func conforms(t *testing.T, ways []way, addrs []string, layout Layout, refuses func(string) bool) {
	drivertest.Run(t, harness(t, ways[0], addrs, Options{Layout: layout}, refuses))
}

// travels runs, by the users' clients, what depends on how commands and messages travel.
func travels(t *testing.T, ways []way, addrs []string, opts Options, refuses func(string) bool) {
	for _, w := range ways[1:] {
		t.Run(w.name, func(t *testing.T) { travelsBy(t, harness(t, w, addrs, opts, refuses)) })
	}
}

func travelsBy(t *testing.T, h drivertest.Harness) {
	for _, c := range drivertest.Checks() {
		subject, _, _ := strings.Cut(c.Name, "/")
		if !slices.Contains([]string{"again", "release", "watch", "cut", "ctx"}, subject) {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			if err := c.Run(t.Context(), &h); err != nil && !errors.Is(err, drivertest.ErrNotClaimed) {
				t.Error(err)
			}
		})
	}
}

func harness(t *testing.T, w way, addrs []string, opts Options, refuses func(string) bool) drivertest.Harness {
	var networks sync.Map
	opts.Name = "redis"
	return drivertest.Harness{
		KindsApart: opts.Layout == Redisson,
		Open: func(context.Context) (driver.Backend, error) {
			n := newNetwork(t)
			b := w.open(t, addrs, opts, n)
			networks.Store(b, n)
			return b, nil
		},
		Cut: func(b driver.Backend) func() {
			n, _ := networks.Load(b)
			return n.(*network).cut()
		},
		LoseAnswers: func(b driver.Backend) func() {
			n, _ := networks.Load(b)
			return n.(*network).loseReplies()
		},
		TTL:     500 * time.Millisecond,
		Refuses: refuses,
	}
}

// isNoClusterName says which names a cluster refuses in either layout.
func isNoClusterName(name string) bool { return layouts.OneSlot(name) != nil || isReserved(name) }

func TestClusterConformance(t *testing.T) {
	conforms(t, clusterWays, testserver.SharedRedisCluster(t).Addrs(), String, isNoClusterName)
}

func TestLongClusterTravels(t *testing.T) {
	travels(t, clusterWays, testserver.SharedRedisCluster(t).Addrs(), Options{Layout: Redisson}, isNoClusterName)
}

func TestLongClusterConformance(t *testing.T) {
	conforms(t, clusterWays, testserver.SharedRedisCluster(t).Addrs(), Redisson, isNoClusterName)
}

func TestLongSentinelConformance(t *testing.T) {
	addrs := testserver.SharedRedisSentinel(t).Addrs()
	for _, layout := range []Layout{String, Redisson} {
		t.Run(string(layout), func(t *testing.T) { conforms(t, sentinelWays, addrs, layout, isReserved) })
	}
}

func timeout(t testing.TB, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.Context(), d)
}

// usable is how soon locks must work again after whatever happened to the servers. A
// failover itself takes a few seconds.
const usable = 2 * time.Minute

// busy locks and unlocks a name without pause until stopped, and renews a lease.
type busy struct {
	pairs atomic.Int64
	stop  context.CancelFunc
	wg    sync.WaitGroup
}

func keepBusy(t *testing.T, b *Backend, names ...string) *busy {
	ctx, cancel := context.WithCancel(t.Context())
	u := &busy{stop: cancel}
	for _, name := range names {
		u.wg.Go(func() {
			for ctx.Err() == nil {
				u.pair(ctx, b, name)
			}
		})
	}
	t.Cleanup(func() { cancel(); u.wg.Wait() })
	return u
}

// pair is as the core does it: calls are bounded, and what is unknown is released.
func (u *busy) pair(ctx context.Context, b *Backend, name string) {
	call, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	r := request(name, driver.Exclusive)
	r.TTL = time.Second
	_, err := b.Acquire(call, r)
	if err == nil {
		u.pairs.Add(1)
	} else {
		time.Sleep(10 * time.Millisecond)
	}
	if !errors.Is(err, driver.ErrHeld) {
		b.Release(call, r.Hold)
	}
}

// goesOn waits until locks are taken again, through every backend.
func goesOn(t *testing.T, what string, all ...*busy) {
	t.Helper()
	start := time.Now()
	for _, u := range all {
		from := u.pairs.Load()
		for u.pairs.Load() < from+5 {
			if time.Since(start) > usable {
				t.Fatalf("%s: no lock could be taken for %v", what, usable)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	t.Logf("%s: usable after %v", what, time.Since(start).Round(time.Millisecond))
}

// wokenByRelease checks that a waiter is woken by a release, without a poll.
func wokenByRelease(t *testing.T, b *Backend, name string) {
	t.Helper()
	deadline := time.Now().Add(usable)
	r := request(name, driver.Exclusive)
	for {
		ctx, cancel := timeout(t, 2*time.Second)
		_, err := b.Acquire(ctx, r)
		cancel()
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("acquire: %v", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	ctx, cancel := timeout(t, usable)
	defer cancel()
	var w driver.Watch
	var err error
	for w.Ready == nil {
		if w, err = b.Watch(ctx, request(name, driver.Exclusive)); err != nil && ctx.Err() != nil {
			t.Fatalf("watch: %v", err)
		}
	}
	defer w.Close()
	release(t, b, r)
	signalled(t, w)
}

// A slot that moves, with a lock that is held, one that is waited for, and others that
// are taken all the while.
func TestClusterSlotMoves(t *testing.T) {
	g := testserver.SharedRedisCluster(t)
	for _, w := range clusterWays {
		t.Run(w.name, func(t *testing.T) {
			b := w.open(t, g.Addrs(), Options{}, newNetwork(t))
			tag := "{" + driver.NewOwner() + "}"
			held := request(tag+"held", driver.Exclusive)
			acquire(t, b, held)
			watch := armWatch(t, b, request(held.Name, driver.Exclusive))
			defer watch.Close()
			u := keepBusy(t, b, tag+"busy")
			goesOn(t, "before", u)

			masters, from := g.Masters(), g.NodeOf(tag)
			to := masters[0]
			if to == from {
				to = masters[1]
			}
			move := g.StartMove(g.Slot(tag), to)
			move.Keys(held.Name)
			// The lock's only key has already moved, so the request goes to the new server.
			for _, err := range b.Renew(t.Context(), []driver.Hold{held.Hold}) {
				if err != nil {
					t.Errorf("renew while the slot moves: %v", err)
				}
			}
			move.Finish()
			goesOn(t, "moved", u)
			signalled(t, watch) // messages may have been missed
			release(t, b, held)
			signalled(t, watch)
			wokenByRelease(t, b, tag+"heard")
		})
	}
}

// The queue of a slot that moves stays as it is: a writer behind a reader gets in before the reader behind it, and nobody while
// the keys are at two servers.
func TestClusterQueueMoves(t *testing.T) {
	g := testserver.SharedRedisCluster(t)
	for _, w := range clusterWays {
		t.Run(w.name, func(t *testing.T) {
			b := longTurns(t, w.open(t, g.Addrs(), Options{}, newNetwork(t)))
			held := request("{"+driver.NewOwner()+"}", driver.Read)
			acquire(t, b, held)
			line := places(t, b, held.Name, driver.Write, driver.Read, driver.Counted)
			watch := armWatch(t, b, line[0])
			defer watch.Close()

			masters, from := g.Masters(), g.NodeOf(held.Name)
			to := masters[0]
			if to == from {
				to = masters[1]
			}
			move := g.StartMove(g.Slot(held.Name), to)
			move.Keys(b.layout.Mode(driver.Read).Keys(nil, held.Name, "")[:3]...) // not the queue
			for _, waiter := range line {
				ctx, cancel := timeout(t, 200*time.Millisecond)
				if _, err := b.Acquire(ctx, waiter); err == nil {
					t.Errorf("%v got in while the slot moves", waiter.Mode)
				}
				cancel()
			}
			move.Finish()
			mayHold(t, b, []driver.Request{line[2], line[1], line[0]})
			wantWaiters(t, b, line...)
			release(t, b, held)
			signalled(t, watch)
			for ; len(line) > 0; line = line[1:] {
				mayHold(t, b, line, 0)
				release(t, b, line[0])
			}
		})
	}
}

func TestClusterFailsOver(t *testing.T) {
	t.Parallel()
	g := testserver.RedisCluster(t, testserver.RedisOptions{})
	const name = "{failing}"
	var all []*busy
	var backends []*Backend
	for _, w := range clusterWays {
		b := w.open(t, g.Addrs(), Options{}, newNetwork(t))
		backends = append(backends, b)
		all = append(all, keepBusy(t, b, name+w.name))
	}
	goesOn(t, "before", all...)
	for _, peaceful := range []bool{true, false} {
		if old := g.NodeOf(name); peaceful {
			g.Failover(old)
		} else {
			old.Kill()
			g.AwaitFailover(old)
		}
		goesOn(t, fmt.Sprintf("peaceful: %v", peaceful), all...)
		for i, b := range backends {
			wokenByRelease(t, b, name+clusterWays[i].name+"heard")
		}
	}
}

func TestSentinelFailsOver(t *testing.T) {
	t.Parallel()
	g := testserver.RedisSentinel(t, testserver.RedisOptions{})
	var all []*busy
	var backends []*Backend
	for _, w := range sentinelWays {
		b := w.open(t, g.Addrs(), Options{}, newNetwork(t))
		backends = append(backends, b)
		all = append(all, keepBusy(t, b, w.name))
	}
	goesOn(t, "before", all...)
	old := g.Master()
	old.Kill()
	g.AwaitFailover(old)
	goesOn(t, "killed", all...)
	for i, b := range backends {
		wokenByRelease(t, b, sentinelWays[i].name+"heard")
	}
}
