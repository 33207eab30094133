package quorum_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/backend/quorum"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
)

// Each backend has connections of its own to five independent stores. A cut connection reaches none.
func TestConformance(t *testing.T) {
	for _, n := range []int{1, 5} {
		t.Run(string(rune('0'+n)), func(t *testing.T) {
			conform(t, n)
		})
	}
}

func conform(t *testing.T, n int) {
	stores := make([]*memlock.Store, n)
	for i := range stores {
		stores[i] = memlock.NewStore()
	}
	var wires sync.Map
	drivertest.Run(t, drivertest.Harness{
		TTL: 1500 * time.Millisecond, // two rounds at five members must be over long before, on a busy machine too
		Open: func(context.Context) (driver.Backend, error) {
			w := newWire(n)
			members := make([]driver.Backend, n)
			for i, s := range stores {
				members[i] = w.to(i, s.Connect())
			}
			b, err := quorum.New(members, &quorum.Options{MemberTimeout: 10 * time.Second})
			if err == nil {
				wires.Store(b, w)
			}
			return b, err
		},
		Cut: func(b driver.Backend) func() {
			w, _ := wires.Load(b)
			w.(*wire).cut()
			return w.(*wire).restore
		},
	})
}
