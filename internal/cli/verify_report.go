package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/distlock/distlock/drivertest"
)

// The results of a check.
const (
	resultOK         = "ok"
	resultNotClaimed = "not claimed"
	resultBroken     = "broken"
	resultNotRun     = "not run"
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
		r.Result, r.Reason = resultNotRun, "the time was up; give a longer --timeout"
	default:
		r.Result, r.Reason = resultBroken, strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	return r
}

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
	if v.Broken > 0 || v.NotRun > 0 {
		return &exitError{code: exitFailure}
	}
	return nil
}
