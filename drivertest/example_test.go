package drivertest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
)

// Checks run without package testing too, one by one, for instance against a store in production.
func ExampleChecks() {
	store := memlock.NewStore()
	h := &drivertest.Harness{
		Open: func(context.Context) (driver.Backend, error) { return store.Connect(), nil },
		TTL:  50 * time.Millisecond,
	}
	for _, c := range drivertest.Checks() {
		if !strings.HasPrefix(c.Name, "release/") {
			continue
		}
		switch err := c.Run(context.Background(), h); {
		case errors.Is(err, drivertest.ErrNotClaimed):
			fmt.Println("not claimed:", c.Promise)
		case err != nil:
			fmt.Println("broken:", c.Promise, err)
		default:
			fmt.Println("kept:", c.Promise)
		}
	}
	// Output:
	// kept: Releasing for an Owner that does not hold is ErrLost and frees nothing.
	// kept: A second Release is ErrLost.
	// kept: Releasing what was never held is ErrLost.
	// kept: Releasing a hold that has ended is ErrLost.
	// kept: Releasing a hold that has ended leaves its successor alone.
	// kept: Any connection can end a hold that Inspect has shown it.
	// kept: Releasing a hold that was inspected does not release its successor.
}
