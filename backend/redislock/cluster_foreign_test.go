package redislock

import (
	"strings"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/redis/go-redis/v9"
)

// In a cluster other data is refused as on one server.
func TestClusterRefusesOtherData(t *testing.T) {
	c := testserver.SharedRedisCluster(t)
	keys := redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs()})
	defer keys.Close()
	for _, scripts := range []Scripts{ScriptsAuto, ScriptsOff} {
		b, err := Open(t.Context(), "redis+cluster://"+strings.Join(c.Addrs(), ",")+"/?prefix=app:&scripts="+string(scripts))
		b = opened(t, b, err)
		r := request("", driver.Exclusive)
		keys.Set(bg, "app:"+r.Name, "an order", 0)
		err = refused(t, b, r, driver.ErrInvalid)
		if !strings.Contains(err.Error(), `"app:`+r.Name+`"`) || keys.Get(bg, "app:"+r.Name).Val() != "an order" {
			t.Errorf("scripts %s: %v", scripts, err)
		}
		for name, err := range listing(t, b, r.Name) {
			t.Errorf("scripts %s: List shows %q, %v", scripts, name, err)
		}
	}
}
