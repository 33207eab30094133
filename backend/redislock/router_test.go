package redislock

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
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
	ways := clusterWaysIn(time.Hour)        // what waits for the silent one does not return
	ways[1] = clusterWaysIn(time.Second)[1] // go-redis itself asks any server, and waits for its timeout
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t)
			b := w.open(t, g.Addrs(), Options{}, n)
			r := routerOf(b)
			lock := request("", driver.Exclusive)
			acquire(t, b, lock)
			release(t, b, lock)
			n.proxy(g.Masters()[0].Addr()).Silence()
			for range 5 {
				if err := r.wait(t.Context(), r.refresh()); err != nil {
					t.Errorf("look: %v", err)
				}
			}
			for range 5 {
				ctx, cancel := timeout(t, 50*time.Millisecond)
				r.open(ctx, "127.0.0.1:1")
				cancel()
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

// moving is a place with one server, which is replaced when the test says so.
type moving struct {
	sentinels
	mu   sync.Mutex
	addr string
	mute bool // nobody says where the server is
}

func (m *moving) open(_ context.Context, addr string) (server, error) {
	return &namedServer{addr: addr}, nil
}

func (m *moving) look(ctx context.Context, _ []string, _ reacher) (table, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mute {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return table{{0, slots - 1, m.addr}}, nil
}

func (m *moving) set(addr string, mute bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.addr, m.mute = addr, mute
}

type namedServer struct {
	server
	addr string
}

func (*namedServer) close() {}

// The first request after a pause does not go to a master that was replaced meanwhile; with
// nobody to say so it does, soon.
func TestMasterReplacedInAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &moving{addr: "one"}
		r := newRouter(m)
		defer r.close()
		at := func(want string) {
			t.Helper()
			s, err := r.at(t.Context(), "")
			if err != nil || s.(*namedServer).addr != want {
				t.Errorf("the server is %v, %v, want %s", s, err, want)
			}
		}
		at("one")
		m.set("two", false)
		time.Sleep(watched / 2)
		at("one")
		time.Sleep(time.Minute)
		at("two")
		time.Sleep(time.Minute)
		m.set("three", true)
		start := time.Now()
		at("two")
		if took := time.Since(start); took > watched {
			t.Errorf("waited for %v", took)
		}
	})
}

// While nobody says where the server is, requests with little time go on to the one that
// was there last.
func TestMuteSentinelsTakeNobodysTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &moving{addr: "one"}
		r := newRouter(m)
		defer r.close()
		r.at(t.Context(), "")
		m.set("one", true)
		for range 200 {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			if _, err := r.at(ctx, ""); err != nil || ctx.Err() != nil {
				t.Errorf("after looking for the server: %v, %v", err, ctx.Err())
			}
			cancel()
			time.Sleep(100 * time.Millisecond)
		}
	})
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
