package distlock_test

import (
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock"
)

// BenchmarkPair measures a lock on memory: alone, and with its context.
func BenchmarkPair(b *testing.B) {
	for what, use := range map[string]func(*distlock.Lease){
		"alone":   func(*distlock.Lease) {},
		"context": func(l *distlock.Lease) { l.Context() },
	} {
		b.Run(what, func(b *testing.B) {
			m := client(b, newRig(), nil).Mutex("x")
			b.ReportAllocs()
			for b.Loop() {
				lease := mustLock(b, m)
				use(lease)
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
