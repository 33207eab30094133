package quorum

import (
	"errors"
	"fmt"
	"strings"

	"github.com/distlock/distlock/driver"
)

// tally counts the members' answers about one hold.
type tally struct {
	of       int // members
	yes      int
	held     int // somebody else holds there
	lost     int
	final    int
	finalErr error
	doubts   []error // of those whose answer is unknown
	unsent   int     // of these, at members that were sent nothing
}

func (t *tally) add(m *member, err error) {
	switch {
	case err == nil:
		t.yes++
	case errors.Is(err, driver.ErrHeld):
		t.held++
	case errors.Is(err, driver.ErrLost):
		t.lost++
	case driver.Final(err):
		t.final++
		t.finalErr = fmt.Errorf("%s: %w", m.name, err)
	case errors.Is(err, driver.ErrUnsent):
		// The whole attempt is unsent only if it is unsent at all members.
		t.doubts = append(t.doubts, fmt.Errorf("%s: %v", m.name, err))
		t.unsent++
	default:
		t.doubts = append(t.doubts, fmt.Errorf("%s: %w", m.name, err))
	}
}

func (t *tally) answered() int {
	return t.yes + t.held + t.lost + t.final + len(t.doubts)
}

var errNoAnswer = errors.New("too few members answered")

// unknown is the error for an outcome that nobody knows. It is none of the facts that
// single members may have reported, so it wraps their doubts only.
func (t *tally) unknown(op, name string) error {
	var counts []string
	for _, c := range []struct {
		n    int
		what string
	}{{t.yes, "yes"}, {t.held, "held by someone else"}, {t.lost, "not held"}, {t.final, "no"}, {t.of - t.answered(), "no answer yet"}} {
		if c.n > 0 {
			counts = append(counts, fmt.Sprintf("%d said: %s", c.n, c.what))
		}
	}
	if n := len(t.doubts); n > 0 {
		counts = append(counts, fmt.Sprintf("%d failed", n))
	}
	err := fmt.Errorf("quorum: %s %s: %w (of %d members %s)", op, driver.Quote(name), errNoAnswer, t.of, strings.Join(counts, ", "))
	err = errors.Join(append([]error{err}, t.doubts...)...)
	if t.unsent == t.of {
		err = driver.Unsent(err)
	}
	return err
}

// heldBy is the refusal that an error is, or nil.
func heldBy(err error) *driver.HeldError {
	held, _ := errors.AsType[*driver.HeldError](err)
	return held
}
