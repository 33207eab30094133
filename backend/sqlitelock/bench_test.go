package sqlitelock

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
)

var durabilities = []Durability{Normal, Full}

// BenchmarkPair acquires and releases one free lock.
func BenchmarkPair(b *testing.B) {
	for _, d := range durabilities {
		b.Run(string(d), func(b *testing.B) {
			db := connectWith(b, lockFile(b), &Options{Synchronous: d})
			for b.Loop() {
				r := request("order:1", driver.Exclusive, long)
				take(b, db, r)
				free(b, db, r)
			}
		})
	}
}

// BenchmarkParallel runs 16 goroutines, with a lock each, on one connection.
func BenchmarkParallel(b *testing.B) {
	for _, d := range durabilities {
		b.Run(string(d), func(b *testing.B) {
			db := connectWith(b, lockFile(b), &Options{Synchronous: d})
			var names atomic.Int64
			b.SetParallelism(8)
			b.RunParallel(func(pb *testing.PB) {
				name := fmt.Sprint("order:", names.Add(1))
				for pb.Next() {
					r := request(name, driver.Exclusive, long)
					expect.OK(b, expect.Err(db.Acquire(b.Context(), r)))
					expect.OK(b, db.Release(b.Context(), r.Hold))
				}
			})
		})
	}
}

// BenchmarkTwo uses two connections, with a lock each or one lock for both.
func BenchmarkTwo(b *testing.B) {
	for _, d := range durabilities {
		for _, shared := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/shared=%t", d, shared), func(b *testing.B) { benchTwo(b, d, shared) })
		}
	}
}

func benchTwo(b *testing.B, d Durability, shared bool) {
	path := lockFile(b)
	dbs := []*Backend{connectWith(b, path, &Options{Synchronous: d}), connectWith(b, path, &Options{Synchronous: d})}
	var left atomic.Int64
	left.Store(int64(b.N))
	var turns [2]int
	done := make(chan error, 2)
	b.ResetTimer()
	for i, db := range dbs {
		name := "order:1"
		if !shared {
			name = fmt.Sprint("order:", i)
		}
		go func() {
			for left.Add(-1) >= 0 {
				if err := turn(b, db, name); err != nil {
					done <- err
					return
				}
				turns[i]++
			}
			done <- nil
		}()
	}
	for range dbs {
		expect.OK(b, <-done)
	}
	b.ReportMetric(float64(min(turns[0], turns[1]))/float64(b.N)*100, "%least")
}

// turn polls until it gets the lock, and releases it.
func turn(b *testing.B, db *Backend, name string) error {
	r := request(name, driver.Exclusive, long)
	for {
		_, err := db.Acquire(b.Context(), r)
		if err == nil {
			return db.Release(b.Context(), r.Hold)
		}
		if !errors.Is(err, driver.ErrHeld) {
			return err
		}
		time.Sleep(db.Caps().Poll)
	}
}
