package zk

import (
	"fmt"
	"sync"
	"testing"

	"github.com/distlock/distlock/internal/testkit/testserver"
)

// BenchmarkPairs makes a node, lists its parent, and deletes it: what an uncontended lock
// asks for.
func BenchmarkPairs(b *testing.B) {
	for _, n := range []int{1, 16, 128} {
		b.Run(fmt.Sprint("goroutines=", n), func(b *testing.B) { benchmarkPairs(b, n) })
	}
}

func benchmarkPairs(b *testing.B, goroutines int) {
	c := dial(b, Config{Servers: []string{testserver.SharedZooKeeper(b).Addr()}, Timeout: long})
	b.ReportAllocs()
	var wg sync.WaitGroup
	turns := make(chan struct{}, goroutines)
	for range goroutines {
		dir := place(b, c)
		wg.Go(func() {
			for range turns {
				e, err := c.CreateAndList(b.Context(), dir+"/n-", nil)
				if err == nil {
					err = c.Delete(b.Context(), e.Path, -1)
				}
				if err != nil {
					b.Error(err)
				}
			}
		})
	}
	for b.Loop() {
		turns <- struct{}{}
	}
	close(turns)
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pairs/s")
}
