package distlock_test

import (
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

// BenchmarkHandOff measures how a lock is passed on among 64 goroutines.
func BenchmarkHandOff(b *testing.B) {
	for what, opts := range map[string]*distlock.Options{"default": {}, "MaxHold": {MaxHold: time.Minute}} {
		b.Run(what, func(b *testing.B) {
			m := client(b, newRig(), opts).Mutex("x")
			b.ReportAllocs()
			var wg sync.WaitGroup
			for i := range 64 {
				wg.Go(func() {
					for range (b.N + i) / 64 {
						mustUnlock(b, mustLock(b, m))
					}
				})
			}
			wg.Wait()
		})
	}
}
