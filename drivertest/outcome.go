package drivertest

import (
	"errors"
	"fmt"

	"github.com/distlock/distlock/driver"
)

// answer describes the result of a call, and wraps its error.
func answer(err error) error {
	if err == nil {
		return errors.New("success")
	}
	return fmt.Errorf("%s (%w)", nameOf(err), err)
}

// nameOf names the kind of an outcome.
func nameOf(err error) string {
	names := []string{"success", "ErrHeld", "ErrLost", "ErrInvalid", "ErrUnsupported", "ErrClosed"}
	for i, kind := range []error{nil, driver.ErrHeld, driver.ErrLost, driver.ErrInvalid, driver.ErrUnsupported, driver.ErrClosed} {
		if errors.Is(err, kind) {
			return names[i]
		}
	}
	return unknownOutcome
}

const unknownOutcome = "an unknown outcome"

// isUnknown reports whether a call had no answer.
func isUnknown(err error) bool {
	return !errors.Is(err, driver.ErrSkip) && nameOf(err) == unknownOutcome
}
