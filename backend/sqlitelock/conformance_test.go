package sqlitelock

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testkit/oddnames"
)

func TestConformance(t *testing.T) {
	path := lockFile(t)
	drivertest.Run(t, drivertest.Harness{Open: func(ctx context.Context) (driver.Backend, error) {
		return OpenFile(ctx, path, &Options{BusyTimeout: time.Minute})
	}})
}

func TestOddNames(t *testing.T) {
	t.Parallel()
	oddnames.Try(t, connect(t, filepath.Join(t.TempDir(), "locks.db")), nil)
}
