package sqlrow

import (
	"context"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testkit/locktest"
)

func TestConformanceWithoutNotifier(t *testing.T) {
	f := newFake()
	drivertest.Run(t, drivertest.Harness{
		Open: func(context.Context) (driver.Backend, error) {
			return New(f, Options{Package: "test", Name: "test"}), nil
		},
	})
}

// The server's clock decides, wherever the server is.
func TestConformanceWithNotifier(t *testing.T) {
	f, p := newFake(), &party{}
	f.skew = -1000 * time.Hour
	drivertest.Run(t, drivertest.Harness{
		Open: func(context.Context) (driver.Backend, error) {
			return New(f, Options{Package: "test", Name: "test", Notifier: p.join}), nil
		},
	})
}

// One statement answers as package claims does.
func TestSameAsClaims(t *testing.T) {
	f := newFake()
	locktest.SameAsClaims(t, start(t, f), 1000, f.end)
}
