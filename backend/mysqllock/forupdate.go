package mysqllock

import (
	"context"
	"fmt"

	"github.com/distlock/distlock/driver"
)

func newForUpdate(context.Context, *site) (strategy, error) {
	return nil, fmt.Errorf("%w: strategy forupdate", driver.ErrUnsupported)
}

// forUpdateDDL are the statements that make the strategy's tables.
func forUpdateDDL(Options) []string { return nil }
