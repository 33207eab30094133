package record_test

import (
	"context"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/record"
	"github.com/distlock/distlock/internal/record/recordtest"
)

func TestConformance(t *testing.T) {
	for name, stamps := range map[string]bool{"counted": false, "stamped": true} {
		t.Run(name, func(t *testing.T) {
			store := recordtest.NewMemory()
			store.Stamps = stamps
			drivertest.Run(t, drivertest.Harness{Open: func(context.Context) (driver.Backend, error) {
				return record.New(store, driver.Caps{Name: "memory", Floor: !stamps, MinTTL: time.Millisecond, Poll: time.Millisecond}), nil
			}})
		})
	}
}
