package etcdlock

import (
	"context"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

func TestMain(m *testing.M) { os.Exit(testserver.Run(m)) }

// Each connection comes through a proxy of its own.
func TestConformance(t *testing.T) {
	t.Parallel()
	conform(t, []string{testserver.SharedEtcd(t).Addr()})
}

func TestConformanceOnACluster(t *testing.T) {
	t.Parallel()
	conform(t, testserver.SharedEtcdCluster(t).Addrs())
}

func conform(t *testing.T, addrs []string) {
	var ways sync.Map
	drivertest.Run(t, drivertest.Harness{
		Parallel: 16, // they wait, most of all
		Open: func(context.Context) (driver.Backend, error) {
			all := proxiesTo(t, addrs)
			b := openThrough(t, all, &Options{Name: "etcd://proxied", Prefix: "conform/"})
			ways.Store(b, all)
			return b, nil
		},
		Cut: func(b driver.Backend) func() {
			all, _ := ways.Load(b)
			for _, p := range all.([]*faultproxy.Proxy) {
				p.Silence()
			}
			return func() {
				for _, p := range all.([]*faultproxy.Proxy) {
					p.Pass()
				}
			}
		},
	})
}

// proxiesTo are proxies of one's own to servers.
func proxiesTo(t testing.TB, addrs []string) []*faultproxy.Proxy {
	t.Helper()
	var all []*faultproxy.Proxy
	for _, addr := range addrs {
		all = append(all, faultproxy.New(t, addr))
	}
	return all
}

// openThrough makes a backend that reaches the members of a cluster by these ways.
func openThrough(t testing.TB, ways []*faultproxy.Proxy, opts *Options) *Backend {
	t.Helper()
	var addrs []string
	for _, p := range ways {
		addrs = append(addrs, p.Addr())
	}
	return openAt(t, strings.Join(addrs, ","), opts)
}
