package pglock

import (
	"context"
	"fmt"

	"github.com/distlock/distlock/driver"
)

func newAdvisory(context.Context, *site) (strategy, error) {
	return nil, fmt.Errorf("%w: strategy %s", driver.ErrUnsupported, Advisory)
}

func advisorySchema(Options) string { return "" }
