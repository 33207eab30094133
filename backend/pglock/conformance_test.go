package pglock

import (
	"context"
	"database/sql"
	"strings"
	"sync"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/jackc/pgx/v5/pgxpool"
)

// suite runs the conformance suite, beside others.
func suite(t *testing.T, h drivertest.Harness) {
	h.Parallel = 4
	drivertest.Run(t, h)
}

func TestConformance(t *testing.T) {
	t.Parallel()
	url := with(t, hasty(t), "create", "true")
	suite(t, drivertest.Harness{Open: func(ctx context.Context) (driver.Backend, error) { return Open(ctx, url) }})
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

func TestLongConformanceOfAUsersDB(t *testing.T) {
	t.Parallel()
	usersDB(t, testserver.SharedPostgres(t))
}

func TestLongConformanceOfAUsersDBOnTheOldest(t *testing.T) {
	t.Parallel()
	usersDB(t, testserver.SharedPostgresVersion(t, "12"))
}

// usersDB runs the suite. Each handle comes through a proxy of its own, which cuts it off where that
// is wanted.
func usersDB(t *testing.T, pg *testserver.PostgresServer) {
	url := hastyAt(t, pg)
	var ways sync.Map
	suite(t, drivertest.Harness{
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

func TestLongConformanceOfAUsersPool(t *testing.T) {
	t.Parallel()
	usersPool(t, testserver.SharedPostgres(t))
}

func TestLongConformanceOfAUsersPoolOnTheNewest(t *testing.T) {
	t.Parallel()
	usersPool(t, testserver.SharedPostgresVersion(t, "18"))
}

// usersPool runs the suite. Two connections are the fewest with which a backend listens.
func usersPool(t *testing.T, pg *testserver.PostgresServer) {
	url := with(t, hastyAt(t, pg), "pool_max_conns", "2")
	suite(t, drivertest.Harness{Open: func(ctx context.Context) (driver.Backend, error) {
		pool, err := pgxpool.New(ctx, url)
		if err != nil {
			return nil, err
		}
		b, err := NewPool(ctx, pool, &Options{Create: true})
		return &borrower{b, pool.Close}, err
	}})
}

func TestLongConformanceBehindAPooler(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgres(t)
	url := with(t, testserver.PgBouncer(t, pg, testserver.PgBouncerOptions{}).Via(hasty(t)), "create", "true", "pooler", "transaction")
	suite(t, drivertest.Harness{Open: func(ctx context.Context) (driver.Backend, error) { return Open(ctx, url) }})
}
