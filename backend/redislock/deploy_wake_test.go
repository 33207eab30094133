package redislock

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// eachWay runs a test for each way to a deployment, side by side.
func eachWay(t *testing.T, ways []way, test func(t *testing.T, w way)) {
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			test(t, w)
		})
	}
}

// A release in a cluster wakes who waits, however messages travel, and whichever client
// either side has. There are no polls here.
func TestClusterWakes(t *testing.T) {
	g := testserver.SharedRedisCluster(t)
	for _, p := range []PubSub{PubSubAuto, PubSubOn, PubSubOff} {
		t.Run(string(p), func(t *testing.T) {
			eachWay(t, clusterWays, func(t *testing.T, w way) {
				for _, mode := range []driver.Mode{driver.Exclusive, driver.Counted} {
					b := w.open(t, g.Addrs(), Options{PubSub: p}, newNetwork(t))
					other := openThrough(t, clusterURL(g), Options{PubSub: p}, newNetwork(t))
					for range 5 { // in as many slots
						r := request("", mode)
						r.Limit = 1
						acquire(t, other, r)
						watch := armWatch(t, b, request(r.Name, mode))
						release(t, other, r)
						signalled(t, watch)
						watch.Close()
					}
				}
			})
		})
	}
}

// Auto is sharded where the servers know it, so that it agrees with Redisson's.
func TestClusterAutoIsSharded(t *testing.T) {
	g := testserver.SharedRedisCluster(t)
	eachWay(t, clusterWays, func(t *testing.T, w way) {
		b := w.open(t, g.Addrs(), Options{}, newNetwork(t))
		r := request("", driver.Exclusive)
		watch := armWatch(t, b, r)
		defer watch.Close()
		if got := b.pubsub.Mode(); got != redisconn.PubSubSharded {
			t.Errorf("messages travel as %d", got)
		}
		c := raw(t, g.NodeOf(r.Name).Addr())
		if n := c.PubSubShardNumSub(t.Context(), freeChannel(r.Name)).Val()[freeChannel(r.Name)]; n != 1 {
			t.Errorf("%d subscriptions on the server that has the slot", n)
		}
	})
}

func TestPubSubOutsideCluster(t *testing.T) {
	srv := testserver.SharedRedis(t)
	for _, p := range []PubSub{PubSubOn, "both", "loud"} {
		if _, err := Open(t.Context(), srv.URL()+"?pubsub="+string(p)); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%s: %v", p, err)
		}
	}
	b, err := Open(t.Context(), srv.URL()+"?pubsub=off")
	opened(t, b, err)
}

func clusterURL(g *testserver.RedisClusterGroup) string {
	return "redis+cluster://" + strings.Join(g.Addrs(), ",")
}

func sentinelURL(g *testserver.RedisSentinelGroup) string {
	return "redis+sentinel://" + strings.Join(g.Addrs(), ",") + "/" + testserver.SentinelName
}

// Leases in many slots are renewed together, and a server that does not answer keeps
// none of the others' waiting.
func TestClusterRenewsWhatItCan(t *testing.T) {
	t.Parallel()
	g := testserver.RedisCluster(t, testserver.RedisOptions{Args: []string{"--cluster-node-timeout", "60000"}})
	b, err := Open(t.Context(), clusterURL(g))
	b = opened(t, b, err)
	frozen := g.Masters()[0]
	var holds []driver.Hold
	dead := map[string]bool{}
	for i := range 300 {
		r := request(fmt.Sprintf("many:%d:%s", i, driver.NewOwner()), driver.Exclusive)
		r.TTL = time.Hour
		acquire(t, b, r)
		holds = append(holds, r.Hold)
		at, err := b.client.At(t.Context(), r.Name)
		if err != nil {
			t.Fatal(err)
		}
		dead[r.Name] = strings.Contains(at.Name(), frozen.Addr())
	}
	frozen.Pause()
	defer frozen.Resume()
	renewed, unclear := 0, 0
	for patience := 500 * time.Millisecond; renewed+unclear < len(holds) && patience < tooLong; patience *= 2 { // again if the machine was slow
		ctx, cancel := timeout(t, patience)
		renewed, unclear = 0, 0
		for i, err := range b.Renew(ctx, holds) {
			dead := dead[holds[i].Name]
			switch {
			case errors.Is(err, driver.ErrLost), err == nil && dead:
				t.Errorf("%s, its server frozen: %v: %v", holds[i].Name, dead, err)
			case err == nil:
				renewed++
			case dead:
				unclear++
			}
		}
		cancel()
	}
	if unclear == 0 || renewed+unclear < len(holds) {
		t.Errorf("of %d leases %d were renewed, and %d are on the frozen server", len(holds), renewed, unclear)
	}
}
