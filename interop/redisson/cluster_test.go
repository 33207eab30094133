package redisson

import (
	"strings"
	"testing"

	"github.com/distlock/distlock/internal/testserver"
	"github.com/redis/go-redis/v9"
)

// inCluster is a Redis Cluster. Redisson uses sharded pub/sub there unless it is told to
// be classic.
func inCluster(t *testing.T, g *testserver.RedisClusterGroup, mode string) *deployment {
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: g.Addrs()})
	t.Cleanup(func() { c.Close() })
	d := &deployment{name: mode, mode: mode, addrs: g.Addrs(), fan: 1, masters: c.ForEachMaster}
	d.url = "redis+cluster://" + strings.Join(d.addrs, ",") + "?layout=redisson"
	t.Cleanup(func() { disconnectAll(t, d.addrs) })
	return d
}

func TestCluster(t *testing.T) {
	g := testserver.RedisCluster(t, testserver.RedisOptions{})
	t.Run("classic", func(t *testing.T) { together(t, inCluster(t, g, "classic-cluster")) })
}

// together is all that Java and Go do together.
func together(t *testing.T, d *deployment) {
	t.Run("turns", func(t *testing.T) {
		turnsAlone(t, d, party{plain, 2, 60})
		turnsAlone(t, d, party{multi, 1, 40})
		turnsShared(t, d)
		turnsCounted(t, d)
	})
	for _, k := range []kind{plain, write, read, permit(1)} {
		t.Run("wake-ups of "+k.java, func(t *testing.T) { wakeUps(t, d, k, 20) })
	}
	t.Run("java dies", func(t *testing.T) { javaDies(t, d) })
	t.Run("go dies", func(t *testing.T) { goDies(t, d) })
}
