package etcdlock

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// heapInUse returns the bytes in use and the number of goroutines.
func heapInUse() (bytes uint64, goroutines int) {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc, testkit.Goroutines()
}

// Many held locks have one watch stream, and are renewed over few streams. Each costs memory, and no goroutine.
func TestManyHeld(t *testing.T) { manyHeld(t, 1000) }

func TestLongManyHeld(t *testing.T) { manyHeld(t, 10_000) }

func manyHeld(t *testing.T, n int) {
	t.Helper()
	var requests atomic.Int64
	count := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		requests.Add(1)
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	streams := func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, stream grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		requests.Add(1)
		return stream(ctx, desc, cc, method, opts...)
	}
	srv := testserver.Etcd(t, testserver.EtcdOptions{})
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{srv.Addr()}, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(count), grpc.WithChainStreamInterceptor(streams)},
	})
	must.OK(t, err)
	defer client.Close()
	b := backendOf(t, client, nil)
	warm, _ := withOnLost(request("", driver.Exclusive))
	warm.TTL = time.Hour // taking them all may take minutes
	acquire(t, b, warm)
	eventually(t, "the stream is open", func() bool { return watchedHolds(b) == 1 })

	var lost atomic.Int64
	before, goroutines := heapInUse()
	holds := make([]driver.Hold, n)
	rs := make([]driver.Request, n)
	for i := range rs {
		rs[i] = request(fmt.Sprintf("many/%05d", i), driver.Exclusive)
		rs[i].TTL, rs[i].OnLost = warm.TTL, func() { lost.Add(1) }
		holds[i] = rs[i].Hold
	}
	var taking sync.WaitGroup
	for some := range slices.Chunk(rs, (n+99)/100) {
		taking.Go(func() {
			for _, r := range some {
				expect.OK(t, expect.Err(b.Acquire(t.Context(), r)))
			}
		})
	}
	taking.Wait()
	rs = nil
	eventually(t, "all keys are watched", func() bool { return watchedHolds(b) == n+1 })
	after, now := heapInUse()
	t.Logf("%d bytes and %.4f goroutines for each hold", (after-before)/uint64(n), float64(now-goroutines)/float64(n))
	if now-goroutines > 10 {
		t.Errorf("%d goroutines more than before", now-goroutines)
	}

	requests.Store(0)
	for some := range slices.Chunk(holds, 500) { // as many as the core renews at once
		for i, err := range b.Renew(t.Context(), some) {
			must.OK(t, err, "renew", some[i].Name)
		}
	}
	// With a TTL of 30 s all are renewed every 10 s.
	t.Logf("%d requests to renew them all: %.1f a second at a TTL of 30 s", requests.Load(), float64(requests.Load())/10)
	if requests.Load() > int64(n)/maxStream+int64(n)/50 {
		t.Errorf("%d requests to renew %d holds", requests.Load(), n)
	}

	must.Get(client.Delete(t.Context(), "many/0", clientv3.WithRange("many/00100")))(t)
	eventually(t, "the holders of a hundred deleted keys are notified", func() bool { return lost.Load() == 100 })
	b.Close()
	expect.Equal(t, lost.Load(), 100, "were notified of a loss")
}

// watchedHolds returns how many holds are watched; 0 while a watch is not live yet.
func watchedHolds(b *Backend) int {
	b.owners.mu.Lock()
	defer b.owners.mu.Unlock()
	b.stream.mu.Lock()
	defer b.stream.mu.Unlock()
	if b.stream.pending > 0 {
		return 0
	}
	n := 0
	for _, c := range b.owners.byOwner {
		if c.watch != nil {
			n++
		}
	}
	return n
}

// Released locks and refused attempts leave nothing in the backend.
func TestNoStateIsLeft(t *testing.T) {
	b, other := shared(t), shared(t)
	r := request("", driver.Counted)
	r.Limit = 2
	acquire(t, other, r)
	for range 5 {
		refused(t, b, request(r.Name, driver.Exclusive), driver.ErrHeld)
		third := queued(request(r.Name, driver.Counted))
		third.Limit = 3
		refused(t, b, third, driver.ErrInvalid)
		free := request("", driver.Exclusive)
		acquire(t, b, free)
		release(t, b, free)
		w := queued(request(r.Name, driver.Exclusive))
		refused(t, b, w, driver.ErrHeld)
		watch := armWatch(t, b, w)
		watch.Close()
		release(t, b, w)
	}
	b.owners.mu.Lock()
	claims, watches := len(b.owners.byOwner), len(b.owners.waiting)
	b.owners.mu.Unlock()
	b.stream.mu.Lock()
	subs := len(b.stream.watches)
	b.stream.mu.Unlock()
	if claims+watches+subs != 0 {
		t.Errorf("%d claims, %d watches, %d on the stream", claims, watches, subs)
	}
	if left := storedKeys(t, other, r.Name); len(left) != 1 {
		t.Errorf("keys: %v", left)
	}
}

// However often a lock is acquired, the servers have few keys to remember: until they compact their
// history, each attempt scans all of them.
func TestKeysAreReused(t *testing.T) {
	b := shared(t)
	r := request("", driver.Exclusive)
	seen := map[string]bool{}
	for range 20 {
		next := request(r.Name, driver.Exclusive)
		acquire(t, b, next)
		seen[b.owners.get(next.Owner).key] = true
		release(t, b, next)
	}
	expect.Equal(t, len(seen), 1, "keys for a lock that one at a time had")
}
