package mysqllock

import (
	"context"
	"fmt"

	"github.com/distlock/distlock/driver"
)

func newUnique(context.Context, *site) (strategy, error) {
	return nil, fmt.Errorf("%w: strategy unique", driver.ErrUnsupported)
}

// uniqueDDL are the statements that make the strategy's tables.
func uniqueDDL(Options) []string { return nil }
