package etcdlock

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// newClient is a client as a program would make it, that is quick to connect again. addr
// may be several, divided by commas.
func newClient(t testing.TB, addr string) *clientv3.Client {
	t.Helper()
	again := backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1.6, MaxDelay: 50 * time.Millisecond}
	c, err := clientv3.New(clientv3.Config{
		Endpoints: strings.Split(addr, ","), Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{Backoff: again, MinConnectTimeout: time.Second})},
	})
	if err != nil {
		t.Fatal(err)
	}
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

// shared is a backend on the server that all tests use.
func shared(t testing.TB) *Backend { return openAt(t, testserver.SharedEtcd(t).Addr(), nil) }

// request is for a fresh Owner, and a name of its own if name is empty.
func request(name string, mode driver.Mode) driver.Request {
	if name == "" {
		name = "test " + driver.NewOwner()
	}
	return driver.Request{
		Hold:   driver.Hold{Name: name, Owner: driver.NewOwner(), Mode: mode, TTL: 30 * time.Second},
		Fences: 1, Limit: 2,
	}
}

func queued(r driver.Request) driver.Request {
	r.Queue = true
	return r
}

func acquire(t testing.TB, b *Backend, r driver.Request) driver.Grant {
	t.Helper()
	g, err := b.Acquire(t.Context(), r)
	if err != nil {
		t.Fatalf("acquire %v: %v", r.Mode, err)
	}
	return g
}

func release(t testing.TB, b *Backend, r driver.Request) {
	t.Helper()
	if err := b.Release(t.Context(), r.Hold); err != nil {
		t.Fatalf("release %v: %v", r.Mode, err)
	}
}

func refused(t testing.TB, b *Backend, r driver.Request, want error) error {
	t.Helper()
	_, err := b.Acquire(t.Context(), r)
	if !errors.Is(err, want) {
		t.Fatalf("acquire %v: %v, want %v", r.Mode, err, want)
	}
	return err
}

func armWatch(t testing.TB, b *Backend, r driver.Request) driver.Watch {
	t.Helper()
	w, err := b.Watch(t.Context(), r)
	if err != nil {
		t.Fatalf("watch: %v", err)
	}
	return w
}

// testTimeout is how long a test waits for what happens in seconds at most, on a loaded machine too.
const testTimeout = 2 * time.Minute

// awaitSignal waits until a watch is signalled.
func awaitSignal(t testing.TB, w driver.Watch) {
	t.Helper()
	select {
	case <-w.Ready:
	case <-time.After(testTimeout):
		t.Fatal("no signal")
	}
}

// eventually waits until a condition holds.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(testTimeout); !cond(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
	}
}

// storedKeys are what lies in the folder of a lock, and whose lease it has.
func storedKeys(t testing.TB, b *Backend, name string) lockQueue {
	t.Helper()
	q, _, err := b.readQueue(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return q
}
