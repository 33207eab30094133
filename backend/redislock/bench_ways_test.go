//go:build unix

package redislock

import (
	"fmt"
	"testing"
)

// BenchmarkPairOtherWays is what a lock and an unlock cost without scripts, and with a
// replica that must acknowledge the lock, beside the usual way.
//
//	go test -run=- -bench=PairOtherWays -benchtime=10x ./backend/redislock
func BenchmarkPairOtherWays(b *testing.B) {
	master, _ := replicated(b)
	usual, off := patient(String), Options{Scripts: ScriptsOff}
	list := []subject{{"open", lockPair(openOwn(b, master.Addr(), Options{}))}}
	for _, o := range openers {
		list = append(list,
			subject{o.name + "-scriptless", lockPair(o.open(b, master.Addr(), off))},
			subject{o.name + "-replica", lockPair(o.open(b, master.Addr(), usual))})
	}
	for _, goroutines := range []int{1, 16, 128} {
		b.Run(fmt.Sprintf("g=%d", goroutines), func(b *testing.B) {
			results := make([][]result, len(list))
			for b.Loop() {
				for i, s := range list {
					results[i] = append(results[i], measure(b, master, goroutines, s.pair))
				}
			}
			report(b, list, results)
		})
	}
}
