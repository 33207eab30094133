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
	for name, c := range map[string]struct {
		stamps bool
		age    func(time.Duration) time.Duration
		late   time.Duration
	}{
		"counted": {}, "stamped": {stamps: true}, "aged": {age: func(age time.Duration) time.Duration { return age - 50*time.Millisecond }, late: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			store := recordtest.NewMemory()
			store.Stamps, store.Age = c.stamps, c.age
			caps := driver.Caps{Name: "memory", Floor: !c.stamps, Late: c.late, MinTTL: time.Millisecond, Poll: time.Millisecond}
			drivertest.Run(t, drivertest.Harness{Open: func(context.Context) (driver.Backend, error) { return record.New(store, caps), nil }})
		})
	}
}
