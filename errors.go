package distlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/distlock/distlock/driver"
)

// The kinds of errors. Every error of this package is an *Error of one of these
// kinds; compare with errors.Is.
var (
	// ErrHeld: another Owner holds the lock, and the caller does not. Try again later. The holder and
	// the time left, as far as they are known, are in a *HeldError (errors.As).
	ErrHeld = driver.ErrHeld

	// ErrLost: the lock was held, and it is not certain any more. Stop the work and lock again.
	ErrLost = driver.ErrLost

	// ErrUnavailable: the backend could not be reached, or its answer was lost. Try again. A lock
	// that may have been taken is released in the background.
	ErrUnavailable = errors.New("distlock: backend unavailable")

	// ErrUnsupported: the backend lacks the feature. Nothing was taken.
	ErrUnsupported = driver.ErrUnsupported

	// ErrInvalid: a bad name, option or URL. Nothing was taken.
	ErrInvalid = driver.ErrInvalid

	// ErrClosed: the client is closed. Nothing was taken.
	ErrClosed = driver.ErrClosed

	// ErrReleased is the cause of a lease's context that ended by Unlock. Calls on such a lease
	// return it.
	ErrReleased = errors.New("distlock: lock released")

	// ErrRevoked is the cause of the context of an Election's term whose leader was asked to step down.
	ErrRevoked = errors.New("distlock: release requested")

	// ErrNoLeader: no process leads an Election now.
	ErrNoLeader = errors.New("distlock: no leader")
)

// HeldError says who holds the lock, and when time alone may free it. It matches ErrHeld.
type HeldError = driver.HeldError

// Error is the error type of every call of this package. errors.Is finds its Kind and its cause: a
// wait that was cut short matches both the error of its context and the last answer of the backend.
type Error struct {
	Op   string // "lock", "trylock", "unlock", "renew", "extend", …
	Name string // of the lock; empty if the call had none
	Kind error  // one of the variables above; nil if a context ended before any call
	Err  error  // more details, or nil
}

// Error is one line: operation, name, kind and cause.
func (e *Error) Error() string {
	kind, cause := plainText(e.Kind), plainText(e.Err)
	s := "distlock: " + e.Op
	if e.Name != "" {
		s += " " + driver.Quote(e.Name)
	}
	if !strings.Contains(cause, kind) {
		s += ": " + kind
	}
	if cause != "" {
		s += ": " + cause
	}
	return s
}

// plainText returns the text of an error without this package's name; "" for nil.
func plainText(err error) string {
	if err == nil {
		return ""
	}
	return strings.ReplaceAll(strings.TrimPrefix(err.Error(), "distlock: "), "\n", "; ")
}

// Unwrap returns Kind and Err, for errors.Is and errors.As.
func (e *Error) Unwrap() []error {
	return slices.DeleteFunc([]error{e.Kind, e.Err}, func(err error) bool { return err == nil })
}

// fail wraps the error of a driver into an *Error of the right kind.
func fail(op, name string, err error) *Error {
	return &Error{Op: op, Name: name, Kind: kindOf(err), Err: err}
}

func kindOf(err error) error {
	for _, kind := range []error{ErrHeld, ErrLost, ErrUnsupported, ErrInvalid, ErrClosed, ErrReleased, ErrRevoked, ErrNoLeader} {
		if errors.Is(err, kind) {
			return kind
		}
	}
	return ErrUnavailable
}

// cutShort returns the error of a wait that ended with its context. It matches the context's error,
// its cause, and the last answer.
func cutShort(op, name string, ctx context.Context, last error) error {
	why := whyDone(ctx)
	if last == nil {
		return &Error{Op: op, Name: name, Err: why}
	}
	return &Error{Op: op, Name: name, Kind: kindOf(last), Err: &pair{why, last, "%s while waiting: %s"}}
}

// whyDone returns the error of a context that has ended, with its cause if that says more.
func whyDone(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return &pair{err, cause, "%s (%s)"}
}

// pair is two errors in one sentence.
type pair struct {
	first, second error
	format        string
}

func (p *pair) Error() string {
	return fmt.Sprintf(p.format, p.first, plainText(p.second))
}

func (p *pair) Unwrap() []error { return []error{p.first, p.second} }

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
}
