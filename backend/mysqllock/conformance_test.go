package mysqllock

import (
	"context"
	"net/url"
	"os"
	"sync"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

func TestMain(m *testing.M) { os.Exit(testserver.Run(m)) }

func TestLongConformanceOfUniqueIndex(t *testing.T) {
	t.Parallel()
	conform(t, UniqueIndex)
}

func TestLongConformanceOfVersion(t *testing.T) {
	t.Parallel()
	conform(t, Version)
}

// conform runs the suite on a strategy, in a database of its own, each connection through a
// proxy of its own.
func conform(t *testing.T, s Strategy) {
	t.Helper()
	u, err := url.Parse(testserver.SharedMariaDB(t).Database(t) + "?create=true&strategy=" + string(s))
	if err != nil {
		t.Fatal(err)
	}
	var proxies sync.Map
	h := drivertest.Harness{
		Parallel: 4, // beside other suites
		Open: func(ctx context.Context) (driver.Backend, error) {
			p := faultproxy.New(t, u.Host)
			proxied := *u
			proxied.Host = p.Addr()
			b, err := Open(ctx, proxied.String())
			if err != nil {
				return nil, err
			}
			proxies.Store(b, p)
			return b, nil
		},
		Cut: func(b driver.Backend) func() {
			p, _ := proxies.Load(b)
			p.(*faultproxy.Proxy).Silence()
			return p.(*faultproxy.Proxy).Pass
		},
	}
	if s == UniqueIndex || s == Version {
		h.Refuses = func(name string) bool { return len(name) > nameLength }
	}
	drivertest.Run(t, h)
}
