package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
)

// The results of a check.
const (
	resultOK         = "ok"
	resultNotClaimed = "not claimed"
	resultBroken     = "broken"
	resultNotRun     = "not run"
)

// The reasons of checks that were not run, in part.
const (
	reasonTime        = "the time was up; give a longer --timeout"
	reasonUnreachable = "the server can't be reached, or refuses connections: "
)

// checkJSON is the result of one check.
type checkJSON struct {
	Name    string `json:"name"`
	Promise string `json:"promise"`
	Result  string `json:"result"`           // ok, not claimed, broken, not run
	Reason  string `json:"reason,omitempty"` // of broken and not run
	TookMS  int64  `json:"took_ms"`
}

func runCheck(ctx context.Context, c drivertest.Check, h *drivertest.Harness) checkJSON {
	r := checkJSON{Name: c.Name, Promise: c.Promise, Result: resultOK}
	began := time.Now()
	err := ctx.Err()
	if err == nil {
		err = c.Run(ctx, h)
	}
	r.TookMS = time.Since(began).Milliseconds()
	switch {
	case err == nil:
	case errors.Is(err, drivertest.ErrNotClaimed):
		r.Result = resultNotClaimed
	case ctx.Err() != nil:
		r.Result, r.Reason = resultNotRun, reasonTime
	case unreachable(err):
		r.Result, r.Reason = resultNotRun, reasonUnreachable+oneLine(err)
	default:
		r.Result, r.Reason = resultBroken, oneLine(err)
		if err := reach(ctx, h); err != nil {
			r.Result, r.Reason = resultNotRun, reasonUnreachable+oneLine(err)
		}
	}
	return r
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// reach answers why the server can't be reached, as the reason for which a check has failed.
func reach(ctx context.Context, h *drivertest.Harness) error {
	b, err := h.Open(ctx)
	if err == nil {
		b.Close()
	}
	if err == nil || !unreachable(err) {
		return nil
	}
	return err
}

// unreachable reports whether an error comes of a connection that was not made. Open
// says so itself; calls on a backend that needs another connection do in other ways.
func unreachable(err error) bool {
	if errors.Is(err, distlock.ErrUnavailable) || errors.Is(err, driver.ErrUnsent) {
		return true
	}
	if e, ok := errors.AsType[*net.OpError](err); ok && e.Op == "dial" {
		return true
	}
	if e, ok := errors.AsType[*mysql.MySQLError](err); ok {
		return slices.Contains(fullMySQL, e.Number)
	}
	if e, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err); ok {
		return slices.Contains(fullPostgres, e.SQLState())
	}
	return strings.Contains(err.Error(), fullRedis)
}

// The answers of servers that take no more connections.
var (
	fullMySQL    = []uint16{1040, 1203, 1226} // of the server, of the user, of an account
	fullPostgres = []string{"53300", "57P03"} // of the server, the user or the database; or it is starting or ending
	fullRedis    = "max number of clients reached"
)

// line is the result in a line.
func (r checkJSON) line() string {
	word := r.Result
	if word == resultBroken {
		word = "BROKEN"
	}
	line := fmt.Sprintf("%-11s  %-34s  %s", word, r.Name, r.Promise)
	if r.Reason != "" {
		line += " -- " + r.Reason
	}
	return line
}

// verifyJSON is the whole of verify --json.
type verifyJSON struct {
	URL        string      `json:"url"`
	Backend    string      `json:"backend"`
	OK         int         `json:"ok"`
	NotClaimed int         `json:"not_claimed"`
	Broken     int         `json:"broken"`
	NotRun     int         `json:"not_run"`
	unreached  int         // of those not run
	Checks     []checkJSON `json:"checks"`
}

func (v *verifyJSON) add(r checkJSON) {
	v.Checks = append(v.Checks, r)
	switch r.Result {
	case resultOK:
		v.OK++
	case resultNotClaimed:
		v.NotClaimed++
	case resultBroken:
		v.Broken++
	case resultNotRun:
		v.NotRun++
		if strings.HasPrefix(r.Reason, reasonUnreachable) {
			v.unreached++
		}
	}
}

func (a *app) conclude(o *verifyOptions, v *verifyJSON) error {
	if o.json {
		for i := range v.Checks {
			v.Checks[i].Reason = scrub(v.Checks[i].Reason, a.secrets)
		}
		if err := writeJSON(a.out, v); err != nil {
			return err
		}
	} else {
		a.printf("%s: %d kept, %d not claimed, %d broken, %d not run\n", plain(v.Backend), v.OK, v.NotClaimed, v.Broken, v.NotRun)
	}
	switch {
	case v.Broken == 0 && v.unreached > 0:
		return &exitError{code: exitUnreachable}
	case v.Broken > 0 || v.NotRun > 0:
		return &exitError{code: exitFailure}
	}
	return nil
}
