package fence

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// ErrStale is matched by every refusal of a fence that is smaller than one that was
// presented before. The lease that it comes from has ended: take the lock anew and begin
// with reading. Repeating the call does not help.
var ErrStale = errors.New("stale fence")

// ErrInvalid is matched by errors about what can't be right: fence 0, no resource, a
// table of another shape. Nothing was let in.
var ErrInvalid = errors.New("invalid")

// StaleError is a refusal with what is known of it. It matches ErrStale.
type StaleError struct {
	Resource string
	Fence    uint64 // as presented
	Seen     uint64 // the greatest that was presented before; 0 if that was not told
}

// Error names the resource and both fences.
func (e *StaleError) Error() string {
	if e.Seen == 0 {
		return fmt.Sprintf("%v: %d for %q; another has held the lock since", ErrStale, e.Fence, e.Resource)
	}
	return fmt.Sprintf("%v: %d for %q, where %d was before; another has held the lock since", ErrStale, e.Fence, e.Resource, e.Seen)
}

// Unwrap makes errors.Is(err, ErrStale) true.
func (e *StaleError) Unwrap() error { return ErrStale }

// A Guard lets in who presents the greatest fence of a resource. Memory is one.
type Guard interface {
	// Enter presents a fence for a resource. From then on smaller ones are refused. It
	// returns when nobody is inside under a smaller one, or when ctx has ended. Whoever
	// was let in calls leave when done; more than once does no harm.
	//
	// A refusal matches ErrStale; fence 0 and an empty resource are ErrInvalid.
	Enter(ctx context.Context, resource string, fence uint64) (leave func(), err error)
}

// MaxResource is how many bytes a resource's name may have.
const MaxResource = 512

// Check is the rule itself, for guards of your own: a *StaleError if fence is smaller
// than seen, the greatest that was presented before (0: none), and ErrInvalid for what
// Valid refuses. Comparing, remembering and the access that is guarded must be one step.
func Check(resource string, fence, seen uint64) error {
	if err := Valid(resource, fence); err != nil {
		return err
	}
	if fence < seen {
		return &StaleError{Resource: resource, Fence: fence, Seen: seen}
	}
	return nil
}

// Valid refuses, with ErrInvalid, fence 0 and a resource whose name is empty, longer than
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
		return fmt.Errorf("%w fence 0 for %q: is the context that of a lease, and has its backend fences?", ErrInvalid, resource)
	}
	return nil
}
