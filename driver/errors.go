package driver

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// The facts that a driver reports. They are wrapped with what the driver knows
// beyond; compare with errors.Is. Any other error of a driver means that the outcome is unknown.
var (
	// ErrHeld: another Owner holds the lock. Drivers return it as a *HeldError.
	ErrHeld = errors.New("distlock: held by another owner")

	// ErrLost: Owner does not hold, as a fact. It is never returned for a mere suspicion.
	ErrLost = errors.New("distlock: lock lost")

	// ErrInvalid: the request can never succeed: another limit, a key with another type, a name
	// that is used for another kind of lock where the store keeps these apart. What the coordinator refuses because of who
	// asks is not: a login or a right may be given back.
	ErrInvalid = errors.New("distlock: invalid request")

	// ErrUnsupported: this backend can't do it.
	ErrUnsupported = errors.New("distlock: not supported by this backend")

	// ErrClosed: the backend was closed.
	ErrClosed = errors.New("distlock: closed")

	// ErrUnsent: the attempt, or the release, was not sent, or was refused as a whole: it has changed nothing and never
	// will. It states a fact, such as a refused connection. Unsent makes one.
	ErrUnsent = errors.New("distlock: nothing was sent")

	// ErrSpent: the attempt has released its Owner, and the release may arrive late. Another attempt needs a fresh Owner.
	// It comes with one of the facts above, or with an unknown outcome. Spent makes one.
	ErrSpent = errors.New("distlock: the Owner was released")

	// ErrSkip is returned by an optional method: as if it were not implemented.
	ErrSkip = errors.New("distlock: driver skips this call")
)

// HeldError says that another Owner holds. It matches ErrHeld.
type HeldError struct {
	// Retry is when the passing of time alone may let the request be granted: the end of the
	// holder's TTL, or of a dead place in the queue. 0: not known.
	Retry time.Duration

	// Signaled says that nothing else lets the request in but what an armed Watch of the Owner tells by Ready, so that it need
	// not be tried again before that, except to keep its place: only holders are in the way, or others whose end is told too. Ready
	// also fires when something may have been missed. A message that its sender did not live to send is not told.
	Signaled bool

	// Holders are those in the way, as far as the attempt has found out.
	Holders []Holder
}

// Error names the first holder and the time left, as far as they are known.
func (e *HeldError) Error() string {
	s := ""
	if len(e.Holders) > 0 {
		s = e.Holders[0].String()
	}
	s = "held by " + cmp.Or(s, "another owner")
	if n := len(e.Holders); n > 1 {
		s += fmt.Sprintf(" and %d more", n-1)
	}
	if e.Retry > 0 {
		s += fmt.Sprintf(", for another %v unless renewed", e.Retry.Round(time.Millisecond))
	}
	return s
}

// Is makes errors.Is(err, ErrHeld) true.
func (e *HeldError) Is(target error) bool { return target == ErrHeld }

// String describes the holder by its program, in quotes, pid and host; empty if none is known. Text
// of another program is quoted if it is not printable.
func (h Holder) String() string {
	var parts []string
	if p := h.Meta["program"]; p != "" {
		parts = append(parts, strconv.Quote(p))
	}
	if p := h.Meta["pid"]; p != "" {
		parts = append(parts, "pid "+printable(p))
	}
	if p := h.Meta["host"]; p != "" {
		parts = append(parts, "on "+printable(p))
	}
	return strings.Join(parts, " ")
}

func printable(s string) string {
	if q := strconv.Quote(s); len(q) != len(s)+len(`""`) {
		return q
	}
	return s
}

// Final reports whether an attempt can never be granted and has taken nothing. It says nothing about a Release or a
// Renew: whatever these answer but nil and ErrLost is unknown.
func Final(err error) bool {
	return errors.Is(err, ErrInvalid) || errors.Is(err, ErrUnsupported) || errors.Is(err, ErrClosed)
}

// Unsent returns an error with err's text that matches err and ErrUnsent.
func Unsent(err error) error { return mark(err, ErrUnsent) }

// Spent returns an error with err's text that matches err and ErrSpent.
func Spent(err error) error { return mark(err, ErrSpent) }

func mark(err, fact error) error {
	if err == nil || errors.Is(err, fact) {
		return err
	}
	return &markedError{err, fact}
}

// markedError is an error that states another fact besides.
type markedError struct{ err, fact error }

func (e *markedError) Error() string        { return e.err.Error() }
func (e *markedError) Is(target error) bool { return target == e.fact }
func (e *markedError) Unwrap() error        { return e.err }

// quoted is how much of a name Quote shows, in bytes.
const quoted = 100

// Quote returns a lock's name, or another text of a caller's, in quotes for an error. Of a
// long one it shows the beginning and the length: some stores take names of megabytes.
func Quote(name string) string {
	if len(name) <= quoted {
		return strconv.Quote(name)
	}
	end := quoted
	for !utf8.RuneStart(name[end]) && end > quoted-utf8.UTFMax {
		end--
	}
	return strconv.Quote(name[:end]+"…") + fmt.Sprintf(" (%d bytes)", len(name))
}
