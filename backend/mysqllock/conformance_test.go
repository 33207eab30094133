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

// conform runs the suite on a strategy, in a new database. Each connection uses its own proxy.
func conform(t *testing.T, s Strategy) {
	t.Helper()
	u, err := url.Parse(testserver.SharedMariaDB(t).Database(t) + "?create=true&strategy=" + string(s))
	if err != nil {
		t.Fatal(err)
	}
	var proxies sync.Map
	h := drivertest.Harness{
		Parallel: 4, // while other suites run
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
	drivertest.Run(t, h)
}

func TestConformanceOfRow(t *testing.T) {
	t.Parallel()
	conform(t, Row)
}

// An attempt whose connection is refused fails with ErrUnsent.
func TestRefusedConnectionsSendNothing(t *testing.T) {
	for _, s := range Strategies() {
		t.Run(string(s), func(t *testing.T) {
			u, err := url.Parse(testserver.SharedMariaDB(t).Database(t) + "?create=true&strategy=" + string(s))
			if err != nil {
				t.Fatal(err)
			}
			p := faultproxy.New(t, u.Host)
			u.Host = p.Addr()
			b := connect(t, u.String())
			take(t, b, request("x", long))
			p.Refuse()
			faultproxy.AwaitUnsent(t, b, func() driver.Request { return request("y", long) })
		})
	}
}
