package redislock

import (
	"errors"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// A server is one, under whatever address, database and prefix; a cluster is none.
func TestIdentity(t *testing.T) {
	t.Parallel()
	srv, other := testserver.SharedRedis(t), testserver.Redis(t)
	sentinels, cluster := testserver.SharedRedisSentinel(t), testserver.SharedRedisCluster(t)
	identity := func(url string) string {
		t.Helper()
		id, err := openAt(t, url, Options{}).Identity(t.Context())
		if err != nil {
			t.Errorf("%s: %v", url, err)
		}
		return id
	}
	id := identity(srv.URL())
	if len(id) != 40 {
		t.Errorf("identity %q", id)
	}
	if again := identity(srv.URL() + "/3?prefix=a:"); again != id {
		t.Errorf("one server is %q and %q", id, again)
	}
	if identity(other.URL()) == id {
		t.Error("two servers are one")
	}
	if viaSentinel, direct := identity(sentinelURL(sentinels)), identity(sentinels.Master().URL()); viaSentinel != direct {
		t.Errorf("a master is %q by its sentinels, and %q", viaSentinel, direct)
	}
	u, name := userURL(t, "", srv)
	mustDo(t, srv, "ACL", "SETUSER", name, "-info")
	for what, url := range map[string]string{"a cluster": clusterURL(cluster), "a user who may not ask": u.String()} {
		if id, err := openAt(t, url, Options{}).Identity(t.Context()); !errors.Is(err, driver.ErrSkip) { // two of them are not one
			t.Errorf("%s: %q, %v; want ErrSkip", what, id, err)
		}
	}
	for _, o := range openers {
		if got, err := o.open(t, srv.Addr(), Options{}).Identity(t.Context()); got != id && err == nil {
			t.Errorf("%s: %q, %v", o.name, got, err)
		}
	}
}
