package mysqllock

import (
	"fmt"

	"github.com/distlock/distlock/driver"
)

// A fence is a grant's number followed by spanBits bits for the hand-offs inside its
// process. The number is one more than the last, and at least the server's clock in µs
// since 1970. Fences stay below 1<<63, and room is left for them until the year 2255.
const (
	spanBits  = 10
	span      = 1 << spanBits
	maxNumber = 1<<(63-spanBits) - 1
)

// granted makes a grant of a number.
func granted(r driver.Request, number int64) (driver.Grant, error) {
	if number > maxNumber {
		return driver.Grant{}, fmt.Errorf("%w: the fences of this name are used up", driver.ErrInvalid)
	}
	return driver.Grant{Fence: uint64(number) << spanBits, Fences: min(max(r.Fences, 1), span), TTL: r.TTL}, nil
}
