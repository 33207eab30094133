package distlock_test

import (
	"flag"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/must"
)

// BenchmarkPair measures a lock on memory: alone, with its context, and with Observer.Leaked.
func BenchmarkPair(b *testing.B) {
	watched := &distlock.Options{Observer: &distlock.Observer{Leaked: func(distlock.Event) {}}}
	for what, test := range map[string]struct {
		opts *distlock.Options
		use  func(*distlock.Lease)
	}{
		"alone":              {nil, func(*distlock.Lease) {}},
		"context":            {nil, func(l *distlock.Lease) { l.Context() }},
		"watched for a leak": {watched, func(*distlock.Lease) {}},
	} {
		b.Run(what, func(b *testing.B) {
			m := client(b, newRig(), test.opts).Mutex("x")
			b.ReportAllocs()
			for b.Loop() {
				pair(b, m, test.use)
			}
		})
	}
}

// pair takes the lock and releases it. It calls no helper: TB.Helper takes longer than a hand-off, and its mutex is shared.
func pair(b *testing.B, m *distlock.Mutex, use func(*distlock.Lease)) {
	lease, err := m.Lock(b.Context())
	if err != nil {
		b.Error(err)
		return
	}
	use(lease)
	if err := lease.Unlock(b.Context()); err != nil {
		b.Error(err)
	}
}

// BenchmarkHandOff measures how a lock is passed on among the goroutines of a process.
func BenchmarkHandOff(b *testing.B) {
	for _, waiters := range []int{10, 64, 1000, 10000} {
		for what, opts := range map[string]*distlock.Options{"default": {}, "MaxHold": {MaxHold: time.Minute}} {
			b.Run(fmt.Sprintf("%d/%s", waiters, what), func(b *testing.B) { benchmarkHandOff(b, waiters, opts) })
		}
	}
}

func benchmarkHandOff(b *testing.B, waiters int, opts *distlock.Options) {
	m := client(b, newRig(), opts).Mutex("x")
	b.ReportAllocs()
	lease := mustLock(b, m)
	var wg sync.WaitGroup
	for i := range waiters {
		wg.Go(func() {
			for range max((b.N+i)/waiters, 1) {
				pair(b, m, func(*distlock.Lease) {})
			}
		})
	}
	b.ResetTimer()
	mustUnlock(b, lease)
	wg.Wait()
}

// BenchmarkHeldLease measures the memory of a held lease, without the memory of the backend and the name.
func BenchmarkHeldLease(b *testing.B) {
	const n = 100_000
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprint("held:", i)
	}
	for b.Loop() {
		backend := memlock.New()
		owners := driver.NewOwners()
		grown := heapGrowth(func() any {
			for _, name := range names {
				hold := driver.Hold{Name: name, Owner: owners.New(), Mode: driver.Exclusive, TTL: time.Hour}
				must.Get(backend.Acquire(b.Context(), driver.Request{Hold: hold, Fences: 1}))(b)
			}
			return backend
		})
		c := client(b, memlock.New(), nil)
		leases := make([]*distlock.Lease, n)
		all := heapGrowth(func() any {
			for i, name := range names {
				leases[i] = mustLock(b, c.Mutex(name))
			}
			return leases
		})
		b.ReportMetric(float64(all-grown)/n, "B/lease")
	}
}

// heapGrowth returns how much memory make's result refers to that was not in use before.
func heapGrowth(make func() any) int64 {
	before := heapInUse()
	made := make()
	after := heapInUse()
	runtime.KeepAlive(made)
	return after - before
}

func heapInUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

var manyLeases = flag.Int("leases", 10_000, "how many leases BenchmarkManyLeases holds")

// BenchmarkManyLeases holds very many leases over two renewals of each, and measures the longest time that another
// caller waits for a lock and its release meanwhile. The more leases, the longer their TTL: 30 s for a million of them, which is
// go test -run '^$' -bench ManyLeases -benchtime 1x . -args -leases 1000000
func BenchmarkManyLeases(b *testing.B) {
	n := *manyLeases
	ttl := max(3*time.Second, time.Duration(n)*30*time.Microsecond)
	renewal := ttl / 3
	for b.Loop() {
		c := must.Get(distlock.New(memlock.New(), &distlock.Options{TTL: ttl}))(b)
		start := time.Now()
		for i := range n {
			must.Get(c.Mutex(fmt.Sprint("held:", i)).TryLock(b.Context()))(b)
		}
		b.ReportMetric(time.Since(start).Seconds(), "s-to-lock")
		idle := client(b, memlock.New(), nil)
		var longest [2]time.Duration // of a caller beside the leases, and of one that has nothing to do with them
		for begun := time.Now(); time.Since(begun) < 2*renewal || time.Since(start) < 4*renewal; {
			for i, m := range []*distlock.Mutex{c.Mutex("other"), idle.Mutex("other")} {
				began := time.Now()
				mustUnlock(b, mustLock(b, m))
				longest[i] = max(longest[i], time.Since(began))
				time.Sleep(100 * time.Microsecond)
			}
		}
		b.ReportMetric(float64(longest[0].Milliseconds()), "ms-longest")
		b.ReportMetric(float64(longest[1].Milliseconds()), "ms-longest-elsewhere")
		_ = c.Close() // it has no time for so many
	}
}
