package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
)

func problemOf(err error) httpwire.Problem {
	if own := (*problemError)(nil); errors.As(err, &own) {
		p := own.Problem
		p.Spent = errors.Is(err, driver.ErrSpent)
		return p
	}
	p := httpwire.ProblemOf(err)
	if errors.Is(err, context.DeadlineExceeded) && p.Kind == httpwire.Unknown {
		p.Status, p.Title = http.StatusGatewayTimeout, http.StatusText(http.StatusGatewayTimeout)
	}
	return p
}

// problemError is an error that has its own status.
type problemError struct{ httpwire.Problem }

func (e *problemError) Error() string { return e.Detail }

func problem(status int, kind httpwire.Kind, format string, args ...any) *problemError {
	return &problemError{httpwire.Problem{
		Title: http.StatusText(status), Status: status, Kind: kind, Detail: fmt.Sprintf(format, args...),
	}}
}

func invalid(format string, args ...any) error {
	return problem(http.StatusBadRequest, httpwire.Invalid, format, args...)
}

func writeProblem(w http.ResponseWriter, p httpwire.Problem) {
	w.Header().Set("Content-Type", httpwire.ProblemType)
	if p.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="distlock"`)
	}
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p)
}
