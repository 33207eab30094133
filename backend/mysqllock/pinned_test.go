package mysqllock

import (
	"context"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

func TestConformanceOfSession(t *testing.T) {
	t.Parallel()
	conform(t, Session)
}

// A hold of ForUpdate has a connection of its own, and some checks have hundreds at once.
func TestConformanceOfForUpdate(t *testing.T) {
	t.Parallel()
	srv := testserver.MariaDB(t, testserver.MariaDBOptions{Args: []string{"--max-connections=2000"}})
	url := srv.Database(t) + "?create=true&strategy=forupdate"
	drivertest.Run(t, drivertest.Harness{
		Open:    func(ctx context.Context) (driver.Backend, error) { return Open(ctx, url) },
		Timeout: 3 * time.Minute, Parallel: 4,
	})
}
