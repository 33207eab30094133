package redislock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/redis/go-redis/v9"
)

// network is what lies between one backend and its servers: a proxy before each.
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

var clusterWays = clusterWaysIn(3 * time.Second)

// clusterWaysIn are those of clients that wait so long for an answer.
func clusterWaysIn(d time.Duration) []way {
	return []way{{"url", func(t testing.TB, addrs []string, opts Options, n *network) *Backend {
		return openThrough(t, fmt.Sprintf("redis+cluster://%s?timeout=%v", strings.Join(addrs, ","), d), opts, n)
	}}, {"go-redis", func(t testing.TB, addrs []string, opts Options, n *network) *Backend {
		c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, Dialer: n.dial, ReadTimeout: d, MaintNotificationsConfig: noUpgrades})
		b, err := NewGoRedis(c, &opts)
		return closing(t, opened(t, b, err), func() { c.Close() })
	}}}
}

var sentinelWays = []way{{"url", func(t testing.TB, addrs []string, opts Options, n *network) *Backend {
	return openThrough(t, "redis+sentinel://"+strings.Join(addrs, ",")+"/"+testserver.SentinelName, opts, n)
}}, {"go-redis", func(t testing.TB, addrs []string, opts Options, n *network) *Backend {
	c := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: testserver.SentinelName, SentinelAddrs: addrs, Dialer: n.dial})
	b, err := NewGoRedis(c, &opts)
	return closing(t, opened(t, b, err), func() { c.Close() })
}}, {"go-redis-cluster", func(t testing.TB, addrs []string, opts Options, n *network) *Backend {
	c := redis.NewFailoverClusterClient(&redis.FailoverOptions{MasterName: testserver.SentinelName, SentinelAddrs: addrs, Dialer: n.dial})
	b, err := NewGoRedis(c, &opts)
	return closing(t, opened(t, b, err), func() { c.Close() })
}}}

func openThrough(t testing.TB, url string, opts Options, n *network) *Backend {
	t.Helper()
	u, err := driver.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	to, err := parseURL(u)
	if err != nil {
		t.Fatal(err)
	}
	to.server.Dialer = n.dial
	b, err := NewConn(to.connect(), &opts)
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
		TTL:     500 * time.Millisecond,
		Refuses: refuses,
	}
}

// isNoClusterName says which names a cluster refuses in either layout.
func isNoClusterName(name string) bool { return oneSlot(name) != nil || isReserved(name) }

func TestClusterConformance(t *testing.T) {
	conforms(t, clusterWays, testserver.SharedRedisCluster(t).Addrs(), String, isNoClusterName)
}

func TestLongClusterTravels(t *testing.T) {
	travels(t, clusterWays, testserver.SharedRedisCluster(t).Addrs(), Options{Layout: Redisson}, isNoClusterName)
}

func TestLongClusterConformance(t *testing.T) {
	conforms(t, clusterWays, testserver.SharedRedisCluster(t).Addrs(), Redisson, isNoClusterName)
}

func TestSentinelConformance(t *testing.T) {
	conforms(t, sentinelWays, testserver.SharedRedisSentinel(t).Addrs(), String, isReserved)
}

// The suite is too quick for go-redis's client of sentinels, which takes a while to
// start and leaves a goroutine when it ends.
func TestLongSentinelConformance(t *testing.T) {
	addrs := testserver.SharedRedisSentinel(t).Addrs()
	conforms(t, sentinelWays, addrs, Redisson, isReserved)
}

func timeout(t testing.TB, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.Context(), d)
}
