package rueidislock

import (
	"context"
	"crypto/tls"
	"errors"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock/backend/redislock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/redis/rueidis"
)

var (
	acquire = locktest.Acquire
	release = locktest.Release
)

func TestMain(m *testing.M) { os.Exit(testserver.Run(m)) }

// tooLong is a time within which a busy machine has done everything.
const tooLong = time.Minute

// network has a proxy before each server of one backend.
type network struct {
	t       testing.TB
	mu      sync.Mutex
	proxies map[string]*faultproxy.Proxy
	silent  bool
}

func newNetwork(t testing.TB) *network {
	return &network{t: t, proxies: map[string]*faultproxy.Proxy{}}
}

func (n *network) dial(ctx context.Context, addr string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", n.before(addr).Addr())
}

// before returns the proxy before the server at addr.
func (n *network) before(addr string) *faultproxy.Proxy {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.proxies[addr]
	if p == nil {
		p = faultproxy.New(n.t, addr)
		if n.silent {
			p.Silence()
		}
		n.proxies[addr] = p
	}
	return p
}

func (n *network) cut() (restore func()) {
	n.set(true, (*faultproxy.Proxy).Silence)
	return func() { n.set(false, (*faultproxy.Proxy).Pass) }
}

// loseReplies loses the answers on the routes that are there.
func (n *network) loseReplies() (restore func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return faultproxy.Each(slices.Collect(maps.Values(n.proxies)), (*faultproxy.Proxy).LoseReplies)
}

func (n *network) set(silent bool, each func(*faultproxy.Proxy)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.silent = silent
	for _, p := range n.proxies {
		each(p)
	}
}

// single, cluster and sentinel return the options for these deployments.
func single(addr string) rueidis.ClientOption {
	return rueidis.ClientOption{InitAddress: []string{addr}, ForceSingleClient: true, ConnWriteTimeout: tooLong}
}

func cluster(g *testserver.RedisClusterGroup) rueidis.ClientOption {
	return rueidis.ClientOption{InitAddress: g.Addrs(), ConnWriteTimeout: tooLong}
}

func sentinel(g *testserver.RedisSentinelGroup) rueidis.ClientOption {
	return rueidis.ClientOption{
		InitAddress: g.Addrs(), ConnWriteTimeout: tooLong,
		Sentinel: rueidis.SentinelOption{MasterSet: testserver.SentinelName},
	}
}

// newClient returns a client through n, if n is not nil.
func newClient(t testing.TB, o rueidis.ClientOption, n *network) rueidis.Client {
	t.Helper()
	o.DisableCache, o.PipelineMultiplex, o.RingScaleEachConn = true, -1, 6
	if n != nil {
		o.DialCtxFn = n.dial
	}
	c := must.Get(rueidis.NewClient(o))(t)
	return c
}

// open returns a backend on a client of its own.
func open(t testing.TB, o rueidis.ClientOption, opts redislock.Options, n *network) *redislock.Backend {
	t.Helper()
	c := newClient(t, o, n)
	t.Cleanup(c.Close)
	b := must.Get(New(c, &opts))(t)
	t.Cleanup(func() { b.Close() })
	return b
}

// request is for a fresh Owner, and a name of its own if name is empty.
func request(name string, mode driver.Mode) driver.Request {
	owner := driver.NewOwner()
	if name == "" {
		name = "test:" + owner
	}
	return driver.Request{Hold: driver.Hold{Name: name, Owner: owner, Mode: mode, TTL: 30 * time.Second}, Fences: 1, Limit: 2}
}

// warm lets the server know the scripts, so that the next command is the one that matters.
func warm(t testing.TB, b *redislock.Backend, mode driver.Mode) {
	t.Helper()
	r := request("", mode)
	acquire(t, b, r)
	b.Renew(t.Context(), []driver.Hold{r.Hold})
	release(t, b, r)
}

// unknown fails the test unless err is neither nil nor a fact.
func unknown(t testing.TB, call string, err error) {
	t.Helper()
	if err == nil || driver.Final(err) || errors.Is(err, driver.ErrLost) || errors.Is(err, driver.ErrHeld) {
		t.Errorf("%s: %v, want an unknown outcome", call, err)
	}
}

// signalled waits until a watch signals.
func signalled(t testing.TB, w driver.Watch) {
	t.Helper()
	locktest.Signalled(t, w, "the lock was released")
}

// eventually repeats f, which has two seconds each time, until it succeeds.
func eventually(t testing.TB, f func(ctx context.Context) error) {
	t.Helper()
	for end := time.Now().Add(2 * tooLong); ; time.Sleep(5 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		err := f(ctx)
		cancel()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// wakes checks that a release wakes a waiter. Servers may need time before.
func wakes(t testing.TB, b *redislock.Backend, name string) {
	t.Helper()
	r := request(name, driver.Exclusive)
	var w driver.Watch
	eventually(t, func(ctx context.Context) error {
		_, err := b.Acquire(ctx, r)
		return err
	})
	eventually(t, func(ctx context.Context) (err error) {
		w, err = b.Watch(ctx, request(name, driver.Exclusive))
		return err
	})
	defer w.Close()
	release(t, b, r)
	signalled(t, w)
}
