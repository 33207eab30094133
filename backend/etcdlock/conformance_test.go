package etcdlock

import (
	"context"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// Each backend has proxies of its own.
func TestConformance(t *testing.T) {
	t.Parallel()
	conform(t, []string{testserver.SharedEtcd(t).Addr()}, Options{})
}

func TestLongConformanceOnACluster(t *testing.T) {
	t.Parallel()
	conform(t, testserver.SharedEtcdCluster(t).Addrs(), Options{})
}

func conform(t *testing.T, addrs []string, opts Options) {
	opts.Name, opts.Prefix = "etcd://proxied", "conform/"
	var proxies faultproxy.Networks
	drivertest.Run(t, drivertest.Harness{
		Parallel: 16, // they wait, most of all
		Open: func(context.Context) (driver.Backend, error) {
			all := proxiesTo(t, addrs)
			b := openThrough(t, all, &opts)
			proxies.Add(b, all...)
			return b, nil
		},
		Cut: proxies.Cut, LoseAnswers: proxies.LoseAnswers,
	})
}
