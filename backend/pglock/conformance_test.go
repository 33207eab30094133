package pglock

import (
	"context"
	"database/sql"
	"strings"
	"sync"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/faultproxy"
	"github.com/distlock/distlock/internal/testserver"
	"github.com/jackc/pgx/v5/pgxpool"
)

// suite runs the conformance suite.
func suite(t *testing.T, open func(context.Context) (driver.Backend, error)) {
	drivertest.Run(t, drivertest.Harness{Parallel: 8, Open: open}) // they wait, most of all
}

func TestConformance(t *testing.T) {
	t.Parallel()
	url := with(t, hasty(t), "create", "true")
	suite(t, func(ctx context.Context) (driver.Backend, error) { return Open(ctx, url) })
}

// The oldest version and the newest.
func TestConformanceOfVersions(t *testing.T) {
	for _, version := range []string{"12", "18"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			url := with(t, hastyAt(t, testserver.SharedPostgresVersion(t, version)), "create", "true")
			suite(t, func(ctx context.Context) (driver.Backend, error) { return Open(ctx, url) })
		})
	}
}

// borrower is a backend with a pool of the user's, who closes it afterwards.
type borrower struct {
	*Backend
	end func()
}

func (b *borrower) Close() error {
	defer b.end()
	return b.Backend.Close()
}

// Each handle comes through a proxy of its own, which cuts it off where that is wanted.
func TestConformanceOfAUsersDB(t *testing.T) {
	t.Parallel()
	pg, url := testserver.SharedPostgres(t), hasty(t)
	var ways sync.Map
	drivertest.Run(t, drivertest.Harness{
		Parallel: 8,
		Open: func(ctx context.Context) (driver.Backend, error) {
			way := faultproxy.New(t, pg.Addr())
			db, err := sql.Open("pgx", strings.Replace(url, pg.Addr(), way.Addr(), 1))
			if err != nil {
				return nil, err
			}
			db.SetMaxOpenConns(4)
			b, err := New(ctx, db, &Options{Create: true, Name: "postgres://proxied"})
			lent := &borrower{b, func() { db.Close() }}
			ways.Store(lent, way)
			return lent, err
		},
		Cut: func(b driver.Backend) func() {
			way, _ := ways.Load(b)
			way.(*faultproxy.Proxy).Silence()
			return way.(*faultproxy.Proxy).Pass
		},
	})
}

// Two connections are the fewest with which a backend listens.
func TestConformanceOfAUsersPool(t *testing.T) {
	t.Parallel()
	url := with(t, hasty(t), "pool_max_conns", "2")
	suite(t, func(ctx context.Context) (driver.Backend, error) {
		pool, err := pgxpool.New(ctx, url)
		if err != nil {
			return nil, err
		}
		b, err := NewPool(ctx, pool, &Options{Create: true})
		return &borrower{b, pool.Close}, err
	})
}

func TestConformanceBehindAPooler(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgres(t)
	url := testserver.PgBouncer(t, pg, testserver.PgBouncerOptions{}).Via(hasty(t))
	suite(t, func(ctx context.Context) (driver.Backend, error) { return Open(ctx, with(t, url, "create", "true")) })
}
