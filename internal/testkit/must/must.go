// Package must ends a test at the first step that fails.
package must

import (
	"testing"

	"github.com/distlock/distlock/internal/testkit/expect"
)

// OK ends a test unless err is nil. what says which step it was.
func OK(tb testing.TB, err error, what ...any) {
	tb.Helper()
	Be(tb, err, nil, what...)
}

// Be ends a test unless err matches want.
func Be(tb testing.TB, err, want error, what ...any) {
	tb.Helper()
	if !expect.Be(tb, err, want, what...) {
		tb.FailNow()
	}
}

// Equal ends a test unless got equals want.
func Equal[T comparable](tb testing.TB, got, want T, what ...any) {
	tb.Helper()
	if !expect.Equal(tb, got, want, what...) {
		tb.FailNow()
	}
}

// Get returns a result, or ends the test with its error: c := must.Get(net.Dial("tcp", addr))(t).
func Get[T any](result T, err error) func(testing.TB) T {
	return func(tb testing.TB) T {
		tb.Helper()
		OK(tb, err)
		return result
	}
}
