package zklock

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	srv := testserver.SharedZooKeeper(t)
	var proxies sync.Map // of driver.Backend
	drivertest.Run(t, drivertest.Harness{
		TTL: 2 * time.Second, // a client that waits for the processor must not take the network for broken
		Open: func(ctx context.Context) (driver.Backend, error) {
			p := faultproxy.New(t, srv.Addr())
			b, err := Open(ctx, patiently("zk://"+p.Addr()))
			if err != nil {
				return nil, err
			}
			b.caps.Name = srv.URL()
			proxies.Store(driver.Backend(b), p)
			return b, nil
		},
		Cut: func(b driver.Backend) func() {
			p, _ := proxies.Load(b)
			p.(*faultproxy.Proxy).Silence()
			return p.(*faultproxy.Proxy).Pass
		},
	})
}

// In an ensemble each connection asks another server, which may be behind the others.
func TestLongConformanceOfAnEnsemble(t *testing.T) {
	t.Parallel()
	g := testserver.SharedZooKeeperCluster(t)
	drivertest.Run(t, drivertest.Harness{
		TTL:  2 * time.Second,
		Open: func(ctx context.Context) (driver.Backend, error) { return driver.Open(ctx, patiently(g.URL())) },
	})
}
