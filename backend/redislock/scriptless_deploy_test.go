package redislock

import (
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

func TestLongScriptlessClusterConformance(t *testing.T) {
	addrs, opts := testserver.SharedRedisCluster(t).Addrs(), Options{Scripts: ScriptsOff}
	drivertest.Run(t, harness(t, clusterWays[0], addrs, opts, isNoClusterName))
	travels(t, clusterWays, addrs, opts, isNoClusterName)
}

// Locks of one node that its replica acknowledges, and of all nodes.
func TestReplicasInACluster(t *testing.T) {
	g := testserver.SharedRedisCluster(t)
	for _, w := range clusterWays {
		t.Run(w.name, func(t *testing.T) {
			o := patient(String)
			b := w.open(t, g.Addrs(), o, newNetwork(t))
			var holds []driver.Hold
			for range 12 {
				r := request("", driver.Exclusive)
				acquire(t, b, r)
				holds = append(holds, r.Hold)
			}
			for i, err := range b.Renew(t.Context(), holds) {
				if err != nil {
					t.Errorf("renew %d: %v", i, err)
				}
				release(t, b, driver.Request{Hold: holds[i]})
			}
			o.Replicas = 2 // each master has one
			o.ReplicaTimeout = 50 * time.Millisecond
			_, err := w.open(t, g.Addrs(), o, newNetwork(t)).Acquire(t.Context(), request("", driver.Exclusive))
			unknown(t, "acquire", err)
		})
	}
}

// A slot moves to another server while its lock is held, and back.
func TestScriptlessSlotMoves(t *testing.T) {
	g := testserver.SharedRedisCluster(t)
	for _, w := range clusterWays {
		t.Run(w.name, func(t *testing.T) {
			b := w.open(t, g.Addrs(), Options{Scripts: ScriptsOff}, newNetwork(t))
			r := request("", driver.Exclusive)
			acquire(t, b, r)
			slot := g.Slot(r.Name)
			for _, to := range g.Masters() {
				if to == g.Owner(slot) {
					continue
				}
				g.MoveSlot(slot, to)
				eventually(t, "renewed where the slot is now", func() bool {
					return b.Renew(t.Context(), []driver.Hold{r.Hold})[0] == nil
				})
				refused(t, b, request(r.Name, driver.Exclusive), driver.ErrHeld)
			}
			release(t, b, r)
		})
	}
}

// A failover in peace: the lock is on the new master, and found there.
func TestLongScriptlessFailover(t *testing.T) {
	g := testserver.RedisSentinel(t, testserver.RedisOptions{})
	for _, w := range sentinelWays {
		t.Run(w.name, func(t *testing.T) {
			b := w.open(t, g.Addrs(), Options{Scripts: ScriptsOff}, newNetwork(t))
			r := request("", driver.Exclusive)
			first := acquire(t, b, r)
			now := raw(t, g.Failover().Addr())
			r.TTL *= 2
			eventually(t, "renewed at the new master", func() bool {
				b.Renew(t.Context(), []driver.Hold{r.Hold})
				return now.PTTL(t.Context(), r.Name).Val() > r.TTL/2
			})
			release(t, b, r)
			if next := acquire(t, b, request(r.Name, driver.Exclusive)); next.Fence <= first.Last() {
				t.Errorf("fence %d after %d", next.Fence, first.Last())
			}
		})
	}
}
