package pglock

import (
	"context"
	"fmt"

	"github.com/distlock/distlock/driver"
)

func newRow(context.Context, *site) (strategy, error) {
	return nil, fmt.Errorf("%w: strategy %s", driver.ErrUnsupported, Row)
}

func rowSchema(Options) string { return "" }
