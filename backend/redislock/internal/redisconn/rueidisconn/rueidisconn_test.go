package rueidisconn

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/redis/rueidis"
)

// One silent server of a cluster does not delay the refresh of routes.
func TestRefreshPastASilentServer(t *testing.T) {
	g := testserver.SharedRedisCluster(t)
	var mu sync.Mutex
	proxies := map[string]*faultproxy.Proxy{}
	before := func(addr string) *faultproxy.Proxy {
		mu.Lock()
		defer mu.Unlock()
		if proxies[addr] == nil {
			proxies[addr] = faultproxy.New(t, addr)
		}
		return proxies[addr]
	}
	user, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: g.Addrs(), DisableCache: true, ConnWriteTimeout: time.Hour,
		DialCtxFn: func(ctx context.Context, addr string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", before(addr).Addr())
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer user.Close()
	c := New(user)
	defer c.Close()
	for _, key := range []string{"a", "b", "c"} {
		if _, err := c.Do(t.Context(), key, []string{"EXISTS", key}); err != nil {
			t.Fatal(err)
		}
	}
	before(g.Masters()[0].Addr()).Silence()
	for range 5 {
		if _, err := c.All(t.Context()); err != nil {
			t.Errorf("refresh: %v", err)
		}
	}
}
