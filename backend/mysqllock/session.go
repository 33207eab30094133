package mysqllock

import (
	"context"
	"fmt"

	"github.com/distlock/distlock/driver"
)

func newSession(context.Context, *site) (strategy, error) {
	return nil, fmt.Errorf("%w: strategy session", driver.ErrUnsupported)
}

// sessionDDL are the statements that make the strategy's tables.
func sessionDDL(Options) []string { return nil }
