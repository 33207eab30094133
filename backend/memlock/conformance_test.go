package memlock_test

import (
	"context"
	"testing"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
)

func TestConformance(t *testing.T) {
	store := memlock.NewStore()
	drivertest.Run(t, drivertest.Harness{
		Open: func(context.Context) (driver.Backend, error) { return store.Connect(), nil },
	})
}
