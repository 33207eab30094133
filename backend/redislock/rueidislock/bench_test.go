package rueidislock

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

const compareAndDelete = `if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`

// BenchmarkTransport compares redisconn's own client with rueidis, by SET NX PX and a compare-and-delete. They take turns in short
// slices, and the median of the ratios is reported.
//
//	go test -run=- -bench=Transport -benchtime=30x ./backend/redislock/rueidislock
func BenchmarkTransport(b *testing.B) {
	addr := testserver.SharedRedis(b).Addr()
	raw := must.Get(rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true, ForceSingleClient: true}))(b)
	defer raw.Close()
	own := redisconn.NewServer(redisconn.Options{Addr: addr})
	defer own.Close()
	sha := must.Get(raw.Do(b.Context(), raw.B().ScriptLoad().Script(compareAndDelete).Build()).ToString())(b)
	for _, goroutines := range []int{1, 16, 128} {
		b.Run(fmt.Sprintf("g=%d", goroutines), func(b *testing.B) {
			var ratios []float64
			for b.Loop() {
				floor := pairsPerSlice(b, goroutines, sha, &server{client: raw})
				ratios = append(ratios, pairsPerSlice(b, goroutines, sha, own)/floor)
			}
			slices.Sort(ratios)
			b.ReportMetric(ratios[len(ratios)/2], "x-rueidis")
		})
	}
}

// pairsPerSlice locks and unlocks a name for each goroutine, and returns how often.
func pairsPerSlice(b *testing.B, goroutines int, sha string, s redisconn.Server) float64 {
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	var pairs atomic.Int64
	var wg sync.WaitGroup
	start := time.Now()
	for g := range goroutines {
		wg.Go(func() {
			for name := fmt.Sprint("bench:", g); time.Since(start) < 40*time.Millisecond; pairs.Add(1) {
				owner := driver.NewOwner()
				if reply, err := s.Do(ctx, []string{"SET", name, owner, "NX", "PX", "30000"}); reply != "OK" {
					b.Errorf("%v, %v", reply, err)
				}
				if reply, err := s.Do(ctx, []string{"EVALSHA", sha, "1", name, owner}); reply != int64(1) {
					b.Errorf("%v, %v", reply, err)
				}
			}
		})
	}
	wg.Wait()
	return float64(pairs.Load()) / time.Since(start).Seconds()
}
