package pglock

import (
	"context"
	"database/sql"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testserver"
	"github.com/jackc/pgx/v5/pgxpool"
)

// suite runs the conformance suite.
func suite(t *testing.T, open func(context.Context) (*Backend, error)) {
	drivertest.Run(t, drivertest.Harness{
		Parallel: 8, // they wait, most of all
		Open:     func(ctx context.Context) (driver.Backend, error) { return open(ctx) },
	})
}

func TestConformance(t *testing.T) {
	t.Parallel()
	url := fresh(t)
	suite(t, func(ctx context.Context) (*Backend, error) { return Open(ctx, url) })
}

// Without connections of its own pool to spare for each, with one for each backend.
func TestConformanceOfAUsersDB(t *testing.T) {
	t.Parallel()
	url := testserver.SharedPostgres(t).Database(t)
	suite(t, func(ctx context.Context) (*Backend, error) {
		db, err := sql.Open("pgx", url)
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { db.Close() })
		db.SetMaxOpenConns(4)
		return New(ctx, db, &Options{Create: true})
	})
}

func TestConformanceOfAUsersPool(t *testing.T) {
	t.Parallel()
	url := testserver.SharedPostgres(t).Database(t)
	suite(t, func(ctx context.Context) (*Backend, error) {
		pool, err := pgxpool.New(ctx, url)
		if err != nil {
			return nil, err
		}
		t.Cleanup(pool.Close)
		return NewPool(ctx, pool, &Options{Create: true})
	})
}

func TestConformanceBehindAPooler(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgres(t)
	url := testserver.PgBouncer(t, pg, testserver.PgBouncerOptions{}).Via(pg.Database(t))
	suite(t, func(ctx context.Context) (*Backend, error) { return Open(ctx, with(t, url, "create", "true")) })
}
