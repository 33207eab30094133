package fence

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// ErrStale is matched by every refusal of a fence that is smaller than one presented before. The
// lease of that fence has ended: acquire the lock again and start with reading. Repeating the call
// does not help.
var ErrStale = errors.New("stale fence")

// ErrInvalid is matched by errors about invalid arguments and tables: fence 0, no resource, a table
// with other columns. Nothing was accepted.
var ErrInvalid = errors.New("invalid")

// StaleError is a refusal with its details. It matches ErrStale.
type StaleError struct {
	Resource string
	Fence    uint64 // as presented
	Seen     uint64 // the greatest one presented before; 0: unknown
}

// Error names the resource and both fences.
func (e *StaleError) Error() string {
	if e.Seen == 0 {
		return fmt.Sprintf("%v: %d for %q; another client has held the lock since", ErrStale, e.Fence, e.Resource)
	}
	return fmt.Sprintf("%v: %d for %q after %d; another client has held the lock since", ErrStale, e.Fence, e.Resource, e.Seen)
}

// Unwrap makes errors.Is(err, ErrStale) true.
func (e *StaleError) Unwrap() error { return ErrStale }

// Guard accepts the greatest fence of a resource and refuses smaller ones. Memory is a Guard.
type Guard interface {
	// Enter presents a fence for a resource. From then on smaller ones are refused. It returns once
	// no call is inside under a smaller fence, or ctx has ended. The caller calls leave when it is
	// done; calling it again has no effect.
	//
	// A refusal matches ErrStale; fence 0 and an empty resource are ErrInvalid.
	Enter(ctx context.Context, resource string, fence uint64) (leave func(), err error)
}

// MaxResource is the maximum length of a resource's name in bytes.
const MaxResource = 512

// Check applies the rule, for guards of your own. It returns a *StaleError if fence is smaller than
// seen, the greatest one presented before (0: none), and ErrInvalid where Valid does. Comparing,
// remembering and the guarded access must be one atomic step.
func Check(resource string, fence, seen uint64) error {
	if err := Valid(resource, fence); err != nil {
		return err
	}
	if fence < seen {
		return &StaleError{Resource: resource, Fence: fence, Seen: seen}
	}
	return nil
}

// Valid returns ErrInvalid for fence 0 and for a resource whose name is empty, longer than
// MaxResource or not plain text (UTF-8 without NUL).
func Valid(resource string, fence uint64) error {
	switch {
	case resource == "":
		return fmt.Errorf("%w resource: its name is empty", ErrInvalid)
	case len(resource) > MaxResource:
		return fmt.Errorf("%w resource: its name has %d bytes, more than %d", ErrInvalid, len(resource), MaxResource)
	case !utf8.ValidString(resource) || strings.Contains(resource, "\x00"):
		return fmt.Errorf("%w resource %q: want UTF-8 without NUL", ErrInvalid, resource)
	case fence == 0:
		return fmt.Errorf("%w fence 0 for %q: is the context derived from a lease, and does the backend have fences?", ErrInvalid, resource)
	}
	return nil
}
