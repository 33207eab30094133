package etcdlock

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

var (
	acquire    = locktest.Acquire
	release    = locktest.Release
	refused    = locktest.Refused
	armWatch   = locktest.Watch
	eventually = locktest.Eventually
)

// newClient makes a client as a program would, which reconnects quickly. addr is one address or
// several, separated by commas.
func newClient(t testing.TB, addr string) *clientv3.Client {
	t.Helper()
	return newClientWith(t, addr)
}

// newClientWith makes a client whose calls pass through interceptors.
func newClientWith(t testing.TB, addr string, through ...grpc.UnaryClientInterceptor) *clientv3.Client {
	t.Helper()
	return newClientOf(t, addr, grpc.WithChainUnaryInterceptor(through...))
}

func newClientOf(t testing.TB, addr string, options ...grpc.DialOption) *clientv3.Client {
	t.Helper()
	again := backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1.6, MaxDelay: 50 * time.Millisecond}
	options = append(options, grpc.WithConnectParams(grpc.ConnectParams{Backoff: again, MinConnectTimeout: time.Second}))
	c := must.Get(clientv3.New(clientv3.Config{Endpoints: strings.Split(addr, ","), Logger: zap.NewNop(), DialOptions: options}))(t)
	t.Cleanup(func() { c.Close() })
	return c
}

// openAt makes a backend with a client of its own.
func openAt(t testing.TB, addr string, opts *Options) *Backend {
	t.Helper()
	c := newClient(t, addr)
	b := backendOf(t, c, opts)
	b.closeClient = func() { c.Close() }
	return b
}

func backendOf(t testing.TB, c *clientv3.Client, opts *Options) *Backend {
	t.Helper()
	b := newBackend(c, opts)
	t.Cleanup(func() { b.Close() })
	return b
}

// shared makes a backend on the server that all tests share.
func shared(t testing.TB) *Backend { return openAt(t, testserver.SharedEtcd(t).Addr(), nil) }

// holdTTL outlives tests on a busy machine.
const holdTTL = 5 * time.Minute

// request makes a request for a new Owner, with a new name if name is empty.
func request(name string, mode driver.Mode) driver.Request {
	if name == "" {
		name = "test " + driver.NewOwner()
	}
	return driver.Request{
		Hold:   driver.Hold{Name: name, Owner: driver.NewOwner(), Mode: mode, TTL: holdTTL},
		Fences: 1, Limit: 2,
	}
}

func queued(r driver.Request) driver.Request {
	r.Queue = true
	return r
}

// testTimeout bounds waits that take seconds at most, on a busy machine too.
const testTimeout = 2 * time.Minute

// awaitSignal waits until a watch signals.
func awaitSignal(t testing.TB, w driver.Watch) {
	t.Helper()
	locktest.Signalled(t, w, "the lock was released")
}

// storedKeys returns the keys of a lock.
func storedKeys(t testing.TB, b *Backend, name string) lockQueue {
	t.Helper()
	q, _, err := b.readQueue(t.Context(), name)
	must.OK(t, err)
	return q
}

func TestMain(m *testing.M) { os.Exit(testserver.Run(m)) }

// proxiesTo makes a proxy to each server.
func proxiesTo(t testing.TB, addrs []string) []*faultproxy.Proxy {
	t.Helper()
	var all []*faultproxy.Proxy
	for _, addr := range addrs {
		all = append(all, faultproxy.New(t, addr))
	}
	return all
}

// openThrough makes a backend that reaches the members of a cluster through proxies.
func openThrough(t testing.TB, proxies []*faultproxy.Proxy, opts *Options) *Backend {
	t.Helper()
	var addrs []string
	for _, p := range proxies {
		addrs = append(addrs, p.Addr())
	}
	return openAt(t, strings.Join(addrs, ","), opts)
}

// patiently adds a timeout that is long enough for a busy machine.
func patiently(url string) string {
	if strings.Contains(url, "?") {
		return url + "&timeout=2m"
	}
	return url + "?timeout=2m"
}

// mustOpen opens a backend that is closed with the test.
func mustOpen(t testing.TB, url string) *Backend {
	t.Helper()
	b := must.Get(Open(t.Context(), patiently(url)))(t)
	t.Cleanup(func() { b.Close() })
	return b
}

// newPatiently is New, again while the machine is too busy for its five seconds.
func newPatiently(t testing.TB, c *clientv3.Client, opts *Options) (*Backend, error) {
	t.Helper()
	b, err := New(c, opts)
	for start := time.Now(); errors.Is(err, context.DeadlineExceeded) && time.Since(start) < testTimeout; {
		b, err = New(c, opts)
	}
	return b, err
}

// openPatiently opens a URL with a client that never takes a slow server for a silent one.
func openPatiently(t testing.TB, url string) *Backend {
	t.Helper()
	u := must.Get(driver.ParseURL(url))(t)
	c := must.Get(parseURL(u))(t)
	config := c.clientConfig(context.Background())
	config.DialKeepAliveTime, config.DialTimeout = 0, testTimeout
	client := must.Get(clientv3.New(config))(t)
	t.Cleanup(func() { client.Close() })
	return backendOf(t, client, c.opts)
}

// acquireQueued waits in the queue until the request is granted, as the core does.
func acquireQueued(ctx context.Context, b *Backend, r driver.Request) (driver.Grant, error) {
	r.Queue = true
	g, err := b.Acquire(ctx, r)
	if !errors.Is(err, driver.ErrHeld) {
		return g, err
	}
	w, err := b.Watch(ctx, r)
	if err != nil {
		return g, err
	}
	defer w.Close()
	for {
		g, err := b.Acquire(ctx, r)
		if !errors.Is(err, driver.ErrHeld) {
			return g, err
		}
		select {
		case <-w.Ready:
		case <-time.After(testTimeout):
			return g, errors.New("not signalled")
		case <-ctx.Done():
			return g, ctx.Err()
		}
	}
}

// awaitLost waits for an OnLost.
func awaitLost(t testing.TB, lost <-chan struct{}) {
	t.Helper()
	select {
	case <-lost:
	case <-time.After(testTimeout):
		t.Fatal("the holder was not notified")
	}
}

// awaitQuiet waits until a watch has not signalled for a while.
func awaitQuiet(t testing.TB, w driver.Watch) {
	t.Helper()
	eventually(t, "the watch is quiet", func() bool {
		select {
		case <-w.Ready:
			return false
		case <-time.After(100 * time.Millisecond):
			return true
		}
	})
}

// withOnLost returns a request whose loss is sent to the channel.
func withOnLost(r driver.Request) (driver.Request, chan struct{}) {
	lost := make(chan struct{}, 2)
	r.OnLost = func() { lost <- struct{}{} }
	return r, lost
}

func renew(t testing.TB, b *Backend, r driver.Request) {
	t.Helper()
	must.OK(t, b.Renew(t.Context(), []driver.Hold{r.Hold})[0], "renew")
}

// onlyKey returns the key of a lock that has one.
func onlyKey(t testing.TB, b *Backend, name string) lockKey {
	t.Helper()
	q := storedKeys(t, b, name)
	must.Equal(t, len(q), 1, "keys")
	return q[0]
}
