// Package expect reports what a test did not expect, and lets it go on.
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
	if want == nil {
		tb.Errorf("%s%v", step(what), err)
	} else {
		tb.Errorf("%s%v; want %v", step(what), err, want)
	}
	return false
}

// Equal reports got unless it equals want. what says what was got.
func Equal[T comparable](tb testing.TB, got, want T, what ...any) (ok bool) {
	tb.Helper()
	if got == want {
		return true
	}
	format := "%s%+v; want %+v"
	if _, text := any(got).(string); text {
		format = "%s%q; want %q"
	}
	tb.Errorf(format, step(what), got, want)
	return false
}

func step(what []any) string {
	var s strings.Builder
	for _, part := range what {
		fmt.Fprint(&s, part, ": ")
	}
	return s.String()
}

// Err is the error of a call whose result does not matter.
func Err[T any](_ T, err error) error { return err }

// Err2 is the error of a call with two results that do not matter.
func Err2[A, B any](_ A, _ B, err error) error { return err }
