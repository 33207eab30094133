package redisson

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/distlock/distlock/interop"
)

// inCluster is a Redis Cluster. Redisson uses sharded pub/sub there unless it is configured
// for classic pub/sub; pubsub is Go's parameter.
func inCluster(t *testing.T, g *testserver.RedisClusterGroup, mode, pubsub string) *deployment {
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: g.Addrs()})
	t.Cleanup(func() { c.Close() })
	d := &deployment{name: mode, mode: mode, addrs: g.Addrs(), fan: 1, masters: c.ForEachMaster}
	d.url = "redis+cluster://" + strings.Join(d.addrs, ",") + "?layout=redisson&pubsub=" + pubsub
	return d
}

func TestLongCluster(t *testing.T) {
	g := testserver.RedisCluster(t, testserver.RedisOptions{})
	t.Cleanup(func() { disconnectAll(t, g.Addrs()) })
	byItself := inCluster(t, g, "cluster", "auto")
	t.Run("sharded", func(t *testing.T) { isSharded(t, byItself) })
	t.Run("together", func(t *testing.T) { together(t, byItself) })
	t.Run("sharded on request", func(t *testing.T) { wakeUps(t, inCluster(t, g, "cluster", "on"), plain, 10) })
	t.Run("classic", func(t *testing.T) { wakeUps(t, inCluster(t, g, "classic-cluster", "off"), plain, 10) })
	t.Run("classic permits", func(t *testing.T) { wakeUps(t, inCluster(t, g, "classic-cluster", "off"), permit(1), 10) })
}

// isSharded expects that Redisson waits on a sharded channel of its own accord.
func isSharded(t *testing.T, d *deployment) {
	s := newFixture(t, d, plain, nil)
	h := interop.Take(t, s.lock)
	waits := s.on(s.th, "lock", interop.Millis(lease))
	s.th.Parks(t)
	var found atomic.Bool
	err := d.masters(t.Context(), func(ctx context.Context, c *redis.Client) error {
		channels, err := c.PubSubShardChannels(ctx, "*").Result()
		if slices.Contains(channels, "redisson_lock__channel:{"+s.name+"}") {
			found.Store(true)
		}
		return err
	})
	if err != nil || !found.Load() {
		t.Errorf("Java's channel is not sharded, or %v", err)
	}
	interop.Give(t, h)
	waits.Wait(t)
	s.on(s.th, "unlock").Wait(t)
}

// together is all that Java and Go do together.
func together(t *testing.T, d *deployment) {
	t.Run("turns", func(t *testing.T) {
		turnsAlone(t, d, plain, 2, 60)
		turnsAlone(t, d, fair, 2, 40)
		turnsAlone(t, d, multi, 1, 40)
		turnsShared(t, d)
		turnsCounted(t, d)
	})
	for _, k := range []kind{plain, fair, write, read, permit(1)} {
		t.Run("wake-ups of "+k.Java, func(t *testing.T) { wakeUps(t, d, k, 20) })
	}
	t.Run("java dies", func(t *testing.T) { javaDies(t, d) })
	t.Run("go dies", func(t *testing.T) { goDies(t, d) })
}

// RedissonRedLock and the backend quorum keep each other out, also while a minority of
// the servers is dead.
func TestLongRedLock(t *testing.T) {
	d, servers := byMajority(t)
	t.Run("turns", func(t *testing.T) { turnsAlone(t, d, red, 2, 40) })
	t.Run("wake-ups", func(t *testing.T) { wakeUps(t, d, red, 20) })
	t.Run("one server less", func(t *testing.T) { oneServerLess(t, d, servers[1]) })
}

func oneServerLess(t *testing.T, d *deployment, dead *testserver.RedisServer) {
	s := newFixture(t, d, red, nil)
	for i := range 2 {
		javaClient(t, jvms.Shared(t, i), d, crowdTTL) // Java connects to all of them or not at all
	}
	dead.Kill()
	h := interop.Take(t, s.lock)
	s.on(s.th, "try", "0", interop.Millis(lease)).Says(t, "false")
	interop.Give(t, h)
	held := s.javaLocks(t, s.th)
	interop.IsHeld(t, s.lock)
	s.javaUnlocks(s.th, held).Wait(t)
	interop.Exclude(t, pairs(t, d), interop.NewName(t), party(red, 2, 20))
}
