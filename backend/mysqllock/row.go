package mysqllock

import (
	"context"
	"fmt"

	"github.com/distlock/distlock/driver"
)

func newRow(context.Context, *site) (strategy, error) {
	return nil, fmt.Errorf("%w: strategy row", driver.ErrUnsupported)
}

// rowDDL are the statements that make the strategy's tables.
func rowDDL(Options) []string { return nil }
