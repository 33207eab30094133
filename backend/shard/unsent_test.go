package shard_test

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/distlock/distlock/driver"
)

// A member's ErrUnsent is passed on, unless something was sent to the other member.
func TestUnsent(t *testing.T) {
	for what, c := range map[string]struct {
		list, down string
		want       bool
	}{
		"one member":     {"a", "a", true},
		"the first one":  {"-a +b", "a", true},
		"the second one": {"-a +b", "b", false},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cl := newCluster(t, "a", "b")
				p := cl.process(c.list)
				r := request("lock")
				take(t, p, r)
				if err := p.Release(t.Context(), r.Hold); err != nil {
					t.Fatal(err)
				}
				p.wires[c.down].refuse()
				again := request("lock")
				_, err := p.Acquire(t.Context(), again)
				if err == nil || errors.Is(err, driver.ErrUnsent) != c.want {
					t.Errorf("Acquire: %v; does it match ErrUnsent? want %v", err, c.want)
				}
				if err := p.Release(t.Context(), again.Hold); err == nil || errors.Is(err, driver.ErrUnsent) != (c.list == "a") {
					t.Errorf("Release: %v", err)
				}
			})
		})
	}
}
