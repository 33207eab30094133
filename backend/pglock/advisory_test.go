package pglock

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// severable is a harness whose connections go through a proxy each, which can cut them off.
func severable(t *testing.T, pg *testserver.PostgresServer, url string) drivertest.Harness {
	var ways sync.Map
	return drivertest.Harness{
		Open: func(ctx context.Context) (driver.Backend, error) {
			way := faultproxy.New(t, pg.Addr())
			b, err := openNamed(ctx, strings.Replace(url, pg.Addr(), way.Addr(), 1))
			if err != nil {
				return nil, err
			}
			ways.Store(b, way)
			return b, nil
		},
		Cut: func(b driver.Backend) func() {
			way, _ := ways.Load(b)
			way.(*faultproxy.Proxy).Silence()
			return way.(*faultproxy.Proxy).Pass
		},
	}
}

// openNamed is Open of a database that has the same name by all ways.
func openNamed(ctx context.Context, rawURL string) (*Backend, error) {
	u, err := driver.ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	opts, _, err := readOptions(u)
	if err != nil {
		return nil, err
	}
	config, err := readConfig(u)
	if err != nil {
		return nil, err
	}
	opts.Name = "postgres://proxied"
	return start(ctx, &database{db: openPool(config, 0), owned: true}, opts)
}

func TestConformanceOfAdvisorySession(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgres(t)
	suite(t, severable(t, pg, with(t, hastyAt(t, pg), levels["session"]...)))
}

// A transaction has a connection of its own, and one check has hundreds of holds at once. The server
// is of the newest version.
func TestConformanceOfAdvisoryTransaction(t *testing.T) {
	t.Parallel()
	pg := testserver.Postgres(t, testserver.PostgresOptions{Version: "18", Settings: []string{"max_connections=600"}})
	h := severable(t, pg, with(t, hastyAt(t, pg), levels["transaction"]...))
	h.Timeout = 3 * time.Minute
	suite(t, h)
}

// The oldest version ends silent connections only while they are in a transaction.
func TestLongConformanceOfAdvisorySessionOnTheOldest(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgresVersion(t, "12")
	suite(t, severable(t, pg, with(t, hastyAt(t, pg), levels["session"]...)))
}
