package mysqllock

import (
	"context"
	"fmt"

	"github.com/distlock/distlock/driver"
)

func newVersion(context.Context, *site) (strategy, error) {
	return nil, fmt.Errorf("%w: strategy version", driver.ErrUnsupported)
}

// versionDDL are the statements that make the strategy's tables.
func versionDDL(Options) []string { return nil }
