//go:build unix

package redislock

import (
	"fmt"
	"sync"
	"testing"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// BenchmarkFair is a fair lock that all fight for, by the core as users have it: one
// turn is a Lock and an Unlock. srv-µs is the server's processor time.
func BenchmarkFair(b *testing.B) {
	srv := testserver.SharedRedis(b)
	for _, layout := range []Layout{String, Redisson} {
		for _, n := range [][2]int{{1, 1}, {1, 64}, {4, 16}} {
			b.Run(fmt.Sprintf("%s/clients=%d/waiters=%d", layout, n[0], n[1]), func(b *testing.B) {
				benchFair(b, srv, layout, n[0], n[1])
			})
		}
	}
}

func benchFair(b *testing.B, srv *testserver.RedisServer, layout Layout, clients, waiters int) {
	name := "fair:" + driver.NewOwner()
	turns := make(chan struct{}, b.N)
	for range b.N {
		turns <- struct{}{}
	}
	close(turns)
	var wg sync.WaitGroup
	server := serverCPU(b, srv)
	b.ResetTimer()
	for range clients {
		c, err := distlock.New(openOwn(b, srv.Addr(), Options{Layout: layout}), nil)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { c.Close() })
		for range waiters {
			wg.Go(func() {
				m := c.Mutex(name, distlock.Fair())
				for range turns {
					lease, err := m.Lock(b.Context())
					if err == nil {
						err = lease.Unlock(b.Context())
					}
					if err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "turns/s")
	b.ReportMetric(float64((serverCPU(b, srv)-server).Microseconds())/float64(b.N), "srv-µs/turn")
}
