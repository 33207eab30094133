package redislock

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testserver"
)

// routerOf is the router of a backend for several servers.
func routerOf(b *Backend) *router {
	c := b.client
	if x, ok := c.(*closer); ok {
		c = x.client
	}
	return c.(*router)
}

// One server of many that does not answer is in nobody's way who asks where slots are.
func TestLookPastASilentServer(t *testing.T) {
	g := testserver.SharedRedisCluster(t)
	for _, w := range clusterWays {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t)
			b := w.open(t, g.Addrs(), Options{}, n)
			r := routerOf(b)
			lock := request("", driver.Exclusive)
			acquire(t, b, lock)
			release(t, b, lock)
			n.proxy(g.Masters()[0].Addr()).Silence()
			start := time.Now()
			for range 5 {
				if err := r.wait(t.Context(), r.refresh()); err != nil {
					t.Errorf("look: %v", err)
				}
			}
			if took := time.Since(start); took > 4*time.Second {
				t.Errorf("five looks took %v", took)
			}
			for range 5 {
				start := time.Now()
				ctx, cancel := timeout(t, 50*time.Millisecond)
				r.open(ctx, "127.0.0.1:1")
				cancel()
				if took := time.Since(start); took > time.Second {
					t.Errorf("to find a server took %v, and had 50ms", took)
				}
			}
		})
	}
}

// Those who all at once need a server that is new to a go-redis client do not all ask
// who is there.
func TestFindingAServerIsShared(t *testing.T) {
	g := testserver.SharedRedisCluster(t)
	b := clusterWays[1].open(t, g.Addrs(), Options{}, newNetwork(t))
	before := slotCalls(t, g)
	var wg sync.WaitGroup
	for range 1000 {
		wg.Go(func() { routerOf(b).open(context.Background(), "127.0.0.1:1") })
	}
	wg.Wait()
	if n := slotCalls(t, g) - before; n > 500 {
		t.Errorf("a thousand who want a server ask %d times", n)
	}
}

// slotCalls is how often all servers were asked who has which slot.
func slotCalls(t *testing.T, g *testserver.RedisClusterGroup) (n int) {
	t.Helper()
	for _, addr := range g.Addrs() {
		info, err := raw(t, addr).InfoMap(t.Context(), "commandstats").Result()
		if err != nil {
			t.Fatal(err)
		}
		n += callsIn(info["Commandstats"]["cmdstat_cluster|slots"])
	}
	return n
}

// callsIn reads "calls=12,usec=…".
func callsIn(stat string) (n int) {
	fmt.Sscanf(stat, "calls=%d", &n)
	return n
}
