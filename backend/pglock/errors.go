package pglock

import (
	"errors"
	"fmt"

	"github.com/distlock/distlock/driver"
	"github.com/jackc/pgx/v5/pgconn"
)

// explainConfig says what pgx did not like about a URL, without quoting it.
func explainConfig(err error) error {
	if e := (*pgconn.ParseConfigError)(nil); errors.As(err, &e) {
		if cause := e.Unwrap(); cause != nil {
			err = cause
		} else {
			err = errors.New("malformed")
		}
	}
	return fmt.Errorf("%w: URL: %w", driver.ErrInvalid, err)
}
