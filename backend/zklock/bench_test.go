package zklock

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/distlock/distlock/internal/zk"
)

// BenchmarkPair acquires and releases uncontended locks, and compares that with the least possible:
// creating and deleting a node.
func BenchmarkPair(b *testing.B) {
	srv := testserver.SharedZooKeeper(b)
	locks := open(b, srv.URL())
	bare := dial(b, srv.Addr(), patience)
	for _, width := range []int{1, 16, 128} {
		b.Run(fmt.Sprint("bare/", width), func(b *testing.B) {
			sideBySide(b, width, func(i int) error {
				path, _, err := bare.Create(b.Context(), fmt.Sprintf("/bench-%d-", i), nil, zk.EphemeralSequential)
				if err == nil {
					err = bare.Delete(b.Context(), path, -1)
				}
				return err
			})
		})
		for _, mode := range []driver.Mode{driver.Exclusive, driver.Counted} {
			for _, queue := range []bool{true, false} {
				b.Run(fmt.Sprintf("%v/queue=%v/%d", mode, queue, width), func(b *testing.B) {
					sideBySide(b, width, func(i int) error {
						r := request(fmt.Sprint("bench ", mode, i), mode)
						r.Queue = queue
						_, err := locks.Acquire(b.Context(), r)
						for errors.Is(err, driver.ErrHeld) { // a permit's last holder may still be leaving the queue
							_, err = locks.Acquire(b.Context(), r)
						}
						if err == nil {
							err = locks.Release(b.Context(), r.Hold)
						}
						return err
					})
				})
			}
		}
	}
}

// sideBySide runs f for b.N times in all, in so many goroutines.
func sideBySide(b *testing.B, width int, f func(i int) error) {
	b.ReportAllocs()
	var wg sync.WaitGroup
	for i := range width {
		wg.Go(func() {
			for n := i; n < b.N; n += width {
				if err := f(i); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pairs/s")
}
