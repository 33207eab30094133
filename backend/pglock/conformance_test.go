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
func suite(t *testing.T, open func(context.Context) (driver.Backend, error)) {
	drivertest.Run(t, drivertest.Harness{Parallel: 8, Open: open}) // they wait, most of all
}

func TestConformance(t *testing.T) {
	t.Parallel()
	url := with(t, hasty(t), "create", "true")
	suite(t, func(ctx context.Context) (driver.Backend, error) { return Open(ctx, url) })
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

func TestConformanceOfAUsersDB(t *testing.T) {
	t.Parallel()
	url := hasty(t)
	suite(t, func(ctx context.Context) (driver.Backend, error) {
		db, err := sql.Open("pgx", url)
		if err != nil {
			return nil, err
		}
		db.SetMaxOpenConns(4)
		b, err := New(ctx, db, &Options{Create: true})
		return &borrower{b, func() { db.Close() }}, err
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
