package sqlitelock

import (
	"context"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
)

func TestConformance(t *testing.T) {
	path := lockFile(t)
	drivertest.Run(t, drivertest.Harness{Open: func(ctx context.Context) (driver.Backend, error) {
		return OpenFile(ctx, path, &Options{BusyTimeout: time.Minute})
	}})
}
