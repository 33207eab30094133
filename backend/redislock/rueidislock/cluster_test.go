package rueidislock

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock/backend/redislock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/redis/rueidis"
)

// One silent server of a cluster does not delay the refresh of routes.
func TestRefreshPastASilentServer(t *testing.T) {
	g := testserver.SharedRedisCluster(t)
	n := newNetwork(t)
	user, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: g.Addrs(), DisableCache: true, ConnWriteTimeout: time.Hour,
		DialCtxFn: n.dial,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer user.Close()
	c := connOf(user)
	defer c.Close()
	for _, key := range []string{"a", "b", "c"} {
		must.Get(c.Do(t.Context(), key, []string{"EXISTS", key}))(t)
	}
	n.before(g.Masters()[0].Addr()).Silence()
	for range 5 {
		expect.OK(t, expect.Err(c.All(t.Context())), "refresh")
	}
}

// A release wakes a waiter, whichever commands publish.
func TestClusterWakes(t *testing.T) {
	g := testserver.SharedRedisCluster(t)
	for _, p := range []redislock.PubSub{redislock.PubSubAuto, redislock.PubSubOn, redislock.PubSubOff} {
		b := open(t, cluster(g), redislock.Options{PubSub: p}, nil)
		for range 5 { // in as many slots
			wakes(t, b, request("", driver.Exclusive).Name)
		}
	}
}

// A slot moves, with a lock that is held and another that is waited for.
func TestClusterSlotMoves(t *testing.T) {
	g := testserver.SharedRedisCluster(t)
	for _, scripts := range []redislock.Scripts{redislock.ScriptsAuto, redislock.ScriptsOff} {
		b := open(t, cluster(g), redislock.Options{Scripts: scripts}, nil)
		tag := "{" + driver.NewOwner() + "}"
		held := request(tag+"held", driver.Exclusive)
		acquire(t, b, held)
		w := locktest.Watch(t, b, request(held.Name, driver.Exclusive))
		slot := g.Slot(tag)
		for _, to := range g.Masters() {
			if to == g.Owner(slot) {
				continue
			}
			move := g.StartMove(slot, to)
			move.Keys(held.Name)                  // the lock's only key
			if scripts == redislock.ScriptsAuto { // a transaction waits for the end of the move
				eventually(t, func(ctx context.Context) error { return b.Renew(ctx, []driver.Hold{held.Hold})[0] })
			}
			move.Finish()
			eventually(t, func(ctx context.Context) error { return b.Renew(ctx, []driver.Hold{held.Hold})[0] })
			expect.Be(t, expect.Err(b.Acquire(t.Context(), request(held.Name, driver.Exclusive))), driver.ErrHeld, scripts, "another attempt")
		}
		signalled(t, w) // messages may have been missed
		release(t, b, held)
		signalled(t, w)
		w.Close()
		wakes(t, b, tag+"other")
	}
}

// keepBusy locks and unlocks a name until the test ends.
func keepBusy(t *testing.T, b *redislock.Backend, name string) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	wg.Go(func() {
		for ctx.Err() == nil {
			call, cancel := context.WithTimeout(ctx, 2*time.Second)
			r := request(name, driver.Exclusive)
			r.TTL = time.Second
			if _, err := b.Acquire(call, r); !errors.Is(err, driver.ErrHeld) {
				b.Release(call, r.Hold)
			}
			cancel()
		}
	})
}

func TestClusterFailsOver(t *testing.T) {
	g := testserver.RedisCluster(t, testserver.RedisOptions{})
	b := open(t, cluster(g), redislock.Options{}, nil)
	keepBusy(t, b, "{a}busy")
	wakes(t, b, "{a}before")
	g.Failover(g.NodeOf("{a}"))
	wakes(t, b, "{a}peaceful")
	old := g.NodeOf("{a}")
	old.Kill()
	g.AwaitFailover(old)
	wakes(t, b, "{a}killed")
}

func TestSentinelFailsOver(t *testing.T) {
	g := testserver.RedisSentinel(t, testserver.RedisOptions{})
	b := open(t, sentinel(g), redislock.Options{}, nil)
	keepBusy(t, b, "busy")
	wakes(t, b, "before")
	old := g.Master()
	old.Kill()
	g.AwaitFailover(old)
	wakes(t, b, "killed")
}
