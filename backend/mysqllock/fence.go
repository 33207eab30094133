package mysqllock

import (
	"fmt"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
)

// granted makes a grant of a number, whose fences are as package claims has them.
func granted(r driver.Request, number int64) (driver.Grant, error) {
	if number > claims.MaxNumber {
		return driver.Grant{}, fmt.Errorf("%w: the fences of this name are used up", driver.ErrInvalid)
	}
	return driver.Grant{Fence: uint64(number) << claims.SpanBits, Fences: min(max(r.Fences, 1), claims.Span), TTL: r.TTL}, nil
}
