package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit"
	"github.com/distlock/distlock/internal/testkit/testserver"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// A key with a late write is deleted several times, and not reused until no write can be on its way.
func TestTombstoneKeepsKeyFromReuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ages []time.Duration
		start := time.Now()
		var s tombstones
		s.init(func(_ context.Context, keys []string) []string {
			if len(keys) > 0 {
				ages = append(ages, time.Since(start))
			}
			return keys
		})
		defer s.close()
		s.add("key", "owner")
		time.Sleep(tombstoneLife)
		synctest.Wait()
		if !s.has("key") || !s.hasOwner("owner") {
			t.Error("it may be used again while a deletion may be on its way")
		}
		if len(ages) != len(deleteAges) || !slices.IsSorted(ages) || ages[len(ages)-1] > tombstoneLife*2/3 {
			t.Errorf("deleted after %v, want about %v", ages, deleteAges)
		}
		time.Sleep(tombstoneLife)
		synctest.Wait()
		if s.has("key") || s.hasOwner("owner") {
			t.Error("it is kept for ever")
		}
	})
}

// A deletion without an answer may hit the key late, so the key isn't reused.
func TestKeyOfAnUnknownReleaseIsNotReused(t *testing.T) {
	b := shared(t)
	other := request("", driver.Exclusive)
	acquire(t, b, other) // grants the lease
	l := b.owners.get(other.Owner).lease
	r := queued(request("", driver.Exclusive))
	c, err := b.owners.open(b.folder(r.Name), &r, l)
	if err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	<-gone.Done()
	b.recordFailure(c, l, context.DeadlineExceeded)
	if err := b.Release(gone, r.Hold); err == nil {
		t.Fatal("released without a context")
	}
	release := b.Release(t.Context(), r.Hold)
	next := request(r.Name, driver.Exclusive)
	acquire(t, b, next)
	if key := b.owners.get(next.Owner).key; key == c.key {
		t.Errorf("the next holder has the key %s, to which a deletion may still come; %v", key, release)
	}
}

// A write that lands after its Owner's release is deleted.
func TestLateKeyIsDeleted(t *testing.T) {
	b, admin := shared(t), shared(t)
	r := queued(request("", driver.Exclusive))
	other := request("", driver.Exclusive)
	acquire(t, b, other) // grants the lease
	l := b.owners.get(other.Owner).lease
	c, err := b.owners.open(b.folder(r.Name), &r, l)
	if err != nil {
		t.Fatal(err)
	}
	b.recordFailure(c, l, context.DeadlineExceeded)
	if err := b.Release(t.Context(), r.Hold); !errors.Is(err, driver.ErrLost) {
		t.Fatalf("release of what is not there yet: %v", err)
	}
	if _, err := b.client.Do(t.Context(), putKey(c.key, l, &r, false)); err != nil {
		t.Fatal(err)
	}
	refused(t, admin, request(r.Name, driver.Exclusive), driver.ErrHeld)
	refused(t, b, r, driver.ErrInvalid)
	eventually(t, "the late key is deleted", func() bool { return len(storedKeys(t, admin, r.Name)) == 0 })
	acquire(t, admin, request(r.Name, driver.Exclusive))
}

// heapInUse returns the bytes in use and the number of goroutines.
func heapInUse() (bytes uint64, goroutines int) {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc, testkit.Goroutines()
}

// Many held locks have one lease and one watch stream. Each costs memory, and no goroutine.
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
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	b := backendOf(t, client, nil)
	warm, _ := withOnLost(request("", driver.Exclusive))
	acquire(t, b, warm)
	eventually(t, "the stream is open", func() bool { return watchedHolds(b) == 1 })

	var lost atomic.Int64
	before, goroutines := heapInUse()
	holds := make([]driver.Hold, n)
	rs := make([]driver.Request, n)
	for i := range rs {
		rs[i] = request(fmt.Sprintf("many/%05d", i), driver.Exclusive)
		rs[i].OnLost = func() { lost.Add(1) }
		holds[i] = rs[i].Hold
	}
	var taking sync.WaitGroup
	for some := range slices.Chunk(rs, (n+99)/100) {
		taking.Go(func() {
			for _, r := range some {
				if _, err := b.Acquire(t.Context(), r); err != nil {
					t.Error(err)
				}
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
	if leases, err := client.Leases(t.Context()); err != nil || len(leases.Leases) != 1 {
		t.Errorf("leases: %v, %v; want one", leases, err)
	}

	requests.Store(0)
	for some := range slices.Chunk(holds, 500) { // as many as the core renews at once
		for i, err := range b.Renew(t.Context(), some) {
			if err != nil {
				t.Fatalf("renew %s: %v", some[i].Name, err)
			}
		}
	}
	// With a TTL of 30 s all are renewed every 10 s.
	t.Logf("%d requests to renew them all: %.1f a second at a TTL of 30 s", requests.Load(), float64(requests.Load())/10)
	if requests.Load() > int64(n)/64 {
		t.Errorf("%d requests to renew %d holds", requests.Load(), n)
	}

	if _, err := client.Delete(t.Context(), "many/0", clientv3.WithRange("many/00100")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the holders of a hundred deleted keys are notified", func() bool { return lost.Load() == 100 })
	b.Close()
	left, err := client.Get(t.Context(), "many/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil || left.Count != 0 {
		t.Errorf("after Close: %d keys, %v", left.Count, err)
	}
	if lost.Load() != 100 {
		t.Errorf("%d were notified of a loss; want 100", lost.Load())
	}
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
	r := request("", driver.Exclusive)
	acquire(t, other, r)
	for range 5 {
		refused(t, b, request(r.Name, driver.Exclusive), driver.ErrHeld)
		refused(t, b, queued(request(r.Name, driver.Counted)), driver.ErrInvalid)
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
	if len(seen) != 1 {
		t.Errorf("%d keys for a lock that one at a time had", len(seen))
	}
	if n := len(b.owners.byKey); n != 0 {
		t.Errorf("%d keys are remembered without a claim", n)
	}
}
