package pglock_test

import (
	"context"
	"testing"

	"github.com/distlock/distlock/backend/pglock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testserver"
)

func TestAdvisorySessionConforms(t *testing.T) {
	url := testserver.SharedPostgres(t).Database(t) + "&strategy=advisory&create=true"
	drivertest.Run(t, drivertest.Harness{
		Open: func(ctx context.Context) (driver.Backend, error) { return pglock.Open(ctx, url) },
	})
}

// A transaction has a connection of its own: hundreds of holds at once are for the
// checks, and one of those at a time.
func TestAdvisoryTransactionConforms(t *testing.T) {
	srv := testserver.Postgres(t, testserver.PostgresOptions{Settings: []string{"max_connections=1200"}})
	url := srv.Database(t) + "&strategy=advisory&level=transaction&create=true"
	drivertest.Run(t, drivertest.Harness{
		Parallel: 4,
		Open:     func(ctx context.Context) (driver.Backend, error) { return pglock.Open(ctx, url) },
	})
}
