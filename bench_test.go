package distlock_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock"
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
				lease := mustLock(b, m)
				test.use(lease)
				mustUnlock(b, lease)
			}
		})
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
				mustUnlock(b, mustLock(b, m))
			}
		})
	}
	b.ResetTimer()
	mustUnlock(b, lease)
	wg.Wait()
}
