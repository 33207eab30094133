package etcdlock

import (
	"context"
	"os"
	"sync"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/faultproxy"
	"github.com/distlock/distlock/internal/testserver"
)

func TestMain(m *testing.M) { os.Exit(testserver.Run(m)) }

// Each connection comes through a proxy of its own.
func TestConformance(t *testing.T) {
	srv := testserver.SharedEtcd(t)
	var proxies sync.Map
	drivertest.Run(t, drivertest.Harness{
		Parallel: 16, // they wait, most of all
		Open: func(context.Context) (driver.Backend, error) {
			p := faultproxy.New(t, srv.Addr())
			b := openAt(t, p.Addr(), &Options{Name: "etcd://proxied", Prefix: "conform/"})
			proxies.Store(b, p)
			return b, nil
		},
		Cut: func(b driver.Backend) func() {
			p, _ := proxies.Load(b)
			p.(*faultproxy.Proxy).Silence()
			return p.(*faultproxy.Proxy).Pass
		},
	})
}
