package etcdlock

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// pairs runs f in goroutines, b.N times in all.
func pairs(b *testing.B, goroutines int, f func(ctx context.Context, name string) error) {
	var wg sync.WaitGroup
	var left atomic.Int64
	left.Store(int64(b.N))
	for i := range goroutines {
		wg.Go(func() {
			for n := 0; left.Add(-1) >= 0; n++ {
				if err := f(b.Context(), fmt.Sprintf("bench/%d/%d", i, n)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pairs/s")
}

// BenchmarkPair acquires and releases an uncontended lock, beside a raw put with a lease and its
// deletion.
func BenchmarkPair(b *testing.B) {
	lock := openAt(b, testserver.SharedEtcd(b).Addr(), nil)
	lease, err := lock.client.Grant(b.Context(), 600)
	if err != nil {
		b.Fatal(err)
	}
	for _, n := range []int{1, 16, 128} {
		b.Run(fmt.Sprintf("raw/%d", n), func(b *testing.B) {
			pairs(b, n, func(ctx context.Context, name string) error {
				if _, err := lock.client.Put(ctx, name, "", clientv3.WithLease(lease.ID)); err != nil {
					return err
				}
				_, err := lock.client.Delete(ctx, name)
				return err
			})
		})
		b.Run(fmt.Sprintf("lock/%d", n), func(b *testing.B) {
			pairs(b, n, func(ctx context.Context, name string) error {
				r := queued(request(name, driver.Exclusive))
				if _, err := lock.Acquire(ctx, r); err != nil {
					return err
				}
				return lock.Release(ctx, r.Hold)
			})
		})
	}
}

// BenchmarkContended acquires and releases one lock from several backends at once.
func BenchmarkContended(b *testing.B) {
	for _, n := range []int{2, 16} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			name := request("", driver.Exclusive).Name
			backends := make(chan *Backend, n)
			for range n {
				backends <- openAt(b, testserver.SharedEtcd(b).Addr(), nil)
			}
			b.ResetTimer()
			pairs(b, n, func(ctx context.Context, _ string) error {
				lock := <-backends
				defer func() { backends <- lock }()
				r := request(name, driver.Exclusive)
				if _, err := acquireQueued(ctx, lock, r); err != nil {
					return err
				}
				return lock.Release(ctx, r.Hold)
			})
		})
	}
}

// BenchmarkHandoff measures from just before the release to the grant of a waiter of 8 ms.
func BenchmarkHandoff(b *testing.B) {
	holder, waiter := shared(b), shared(b)
	var took []time.Duration
	for b.Loop() {
		r, next := request("", driver.Exclusive), request("", driver.Exclusive)
		next.Name = r.Name
		acquire(b, holder, r)
		released := make(chan time.Time, 1)
		time.AfterFunc(8*time.Millisecond, func() {
			released <- time.Now()
			holder.Release(b.Context(), r.Hold)
		})
		if _, err := acquireQueued(b.Context(), waiter, next); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(<-released))
		release(b, waiter, next)
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
}
