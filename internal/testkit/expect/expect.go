// Package expect reports errors that a test did not expect, and lets it go on.
package expect

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// OK reports err unless it is nil. what says which step it was.
func OK(tb testing.TB, err error, what ...any) (ok bool) {
	tb.Helper()
	return Be(tb, err, nil, what...)
}

// Be reports err unless it matches want.
func Be(tb testing.TB, err, want error, what ...any) (ok bool) {
	tb.Helper()
	if errors.Is(err, want) {
		return true
	}
	var step strings.Builder
	for _, part := range what {
		fmt.Fprint(&step, part, ": ")
	}
	if want == nil {
		tb.Errorf("%s%v", step.String(), err)
	} else {
		tb.Errorf("%s%v; want %v", step.String(), err, want)
	}
	return false
}

// Err is the error of a call whose result does not matter.
func Err[T any](_ T, err error) error { return err }

// Err2 is the error of a call with two results that do not matter.
func Err2[A, B any](_ A, _ B, err error) error { return err }
