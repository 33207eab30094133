package httpwire

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/distlock/distlock/driver"
)

// ProblemType is the content type of errors (RFC 9457).
const ProblemType = "application/problem+json"

// Problem is the body of an error.
type Problem struct {
	Title   string   `json:"title"`
	Status  int      `json:"status"`
	Detail  string   `json:"detail,omitempty"`
	Kind    Kind     `json:"distlock"`
	Retry   int64    `json:"retry_ms,omitempty"` // held: when the passing of time alone may help
	Holders []Holder `json:"holders,omitempty"`
	Spent   bool     `json:"spent,omitempty"` // the attempt has released its owner: another one needs a fresh owner
}

// status are the status codes of the kinds.
var status = map[Kind]int{
	Held: http.StatusLocked, Lost: http.StatusGone, Invalid: http.StatusBadRequest, Unsupported: http.StatusNotImplemented,
	Denied: http.StatusForbidden, Unsent: http.StatusServiceUnavailable, Unknown: http.StatusServiceUnavailable,
}

// KindOf returns what a backend's error states.
func KindOf(err error) Kind {
	switch {
	case err == nil:
		return OK
	case errors.Is(err, driver.ErrHeld):
		return Held
	case errors.Is(err, driver.ErrLost):
		return Lost
	case errors.Is(err, driver.ErrInvalid):
		return Invalid
	case errors.Is(err, driver.ErrUnsupported):
		return Unsupported
	case errors.Is(err, driver.ErrUnsent), errors.Is(err, driver.ErrClosed):
		return Unsent // of a server that drains; the client goes to the next
	}
	return Unknown
}

// ProblemOf describes a backend's error.
func ProblemOf(err error) Problem {
	p := Problem{Kind: KindOf(err), Detail: err.Error(), Spent: errors.Is(err, driver.ErrSpent)}
	p.Status = status[p.Kind]
	if errors.Is(err, driver.ErrClosed) {
		p.Detail = "the server shuts down"
	}
	var held *driver.HeldError
	if errors.As(err, &held) {
		p.Retry = Up(held.Retry)
		p.Holders = FromHolders(held.Holders, false)
	}
	p.Title = http.StatusText(p.Status)
	return p
}

// remoteError is a fact that a server has stated.
type remoteError struct {
	fact   error
	detail string
}

func (e *remoteError) Error() string { return e.detail }
func (e *remoteError) Unwrap() error { return e.fact }

// Err returns the error that a client makes of a kind and a detail.
func (k Kind) Err(detail string) error {
	fact, ok := map[Kind]error{
		Held: &driver.HeldError{}, Lost: driver.ErrLost, Invalid: driver.ErrInvalid, Unsupported: driver.ErrUnsupported,
		Denied: driver.ErrInvalid, Unsent: driver.ErrUnsent,
	}[k]
	switch {
	case k == OK:
		return nil
	case !ok:
		return fmt.Errorf("the server's outcome is unknown: %s", detail)
	}
	return &remoteError{fact, detail}
}

// Err returns the error that a client makes of a problem.
func (p Problem) Err() error {
	err := p.Kind.Err(p.Detail)
	if p.Kind == Held {
		err = &driver.HeldError{Retry: Duration(p.Retry), Holders: ToHolders(p.Holders)}
	}
	if p.Spent {
		err = driver.Spent(err)
	}
	return err
}
