package cli

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
)

const verifyHelp = `Verify runs the checks that distlock's own backends must pass against your server,
and prints a line for each promise: ok, not claimed (the server can't, and says so),
or BROKEN with the reason. It is safe beside other users: it works on locks with
random names and gives them back.

Exit codes: 0 no promise is broken; 1 one is, or the time was up; 64 and 69 as
those of distlock run.`

// verifyOptions is what verify was asked for.
type verifyOptions struct {
	url      string
	only     string
	list     bool
	json     bool
	parallel int
	ttl      time.Duration
	timeout  time.Duration
}

func (a *app) verifyCommand() *cobra.Command {
	o := &verifyOptions{parallel: 16, timeout: 2 * time.Minute}
	cmd := &cobra.Command{
		Use:   "verify URL",
		Short: "Check that a server keeps what distlock promises",
		Long:  verifyHelp,
		Example: `  distlock verify redis://localhost:6379
  distlock verify --run '^fence/|^release/' sqlite:/tmp/locks.db
  distlock verify --list`,
		Args: func(_ *cobra.Command, args []string) error { return o.parse(args) },
		RunE: func(*cobra.Command, []string) error { return a.verify(o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.only, "run", "", "only the checks whose name matches this regular expression")
	f.BoolVar(&o.list, "list", false, "list the checks and run none")
	f.BoolVar(&o.json, "json", false, "print a JSON object")
	f.Var(number{&o.parallel, 1, 1000}, "parallel", "how many checks run at once")
	f.Var(duration{&o.ttl, true}, "ttl", "the TTL of locks whose end is waited for; longer for a slow server (default 300ms, or the server's least)")
	f.Var(duration{&o.timeout, true}, "timeout", "for all checks together")
	return cmd
}

func (o *verifyOptions) parse(args []string) error {
	switch {
	case o.list && len(args) == 0:
		return nil
	case len(args) != 1:
		return usage("verify: got %d arguments; want one URL such as redis://localhost:6379", len(args))
	}
	o.url = args[0]
	return nil
}

// checks are those that were asked for.
func (o *verifyOptions) checks() ([]drivertest.Check, error) {
	only, err := regexp.Compile(o.only)
	if err != nil {
		return nil, usage("verify: --run: %w", err)
	}
	var chosen []drivertest.Check
	for _, c := range drivertest.Checks() {
		if only.MatchString(c.Name) {
			chosen = append(chosen, c)
		}
	}
	if len(chosen) == 0 {
		return nil, usage("verify: no check matches --run %s; see distlock verify --list", quoted(o.only))
	}
	return chosen, nil
}

func (a *app) verify(o *verifyOptions) error {
	checks, err := o.checks()
	if err != nil {
		return err
	}
	if o.list {
		for _, c := range checks {
			a.printf("%-30s  %s\n", c.Name, c.Promise)
		}
		return nil
	}
	ctx, cancel := interruptible()
	defer cancel()
	report := verifyJSON{URL: driver.Redact(o.url), Checks: []checkJSON{}}
	if report.Backend, err = backendName(ctx, o.url); err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	for _, result := range examine(bounded, o, checks) {
		r := <-result
		report.add(r)
		if !o.json {
			a.printf("%s\n", scrub(r.line(), a.secrets))
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return a.conclude(o, &report)
}

// backendName opens the server once, to tell that it is there and what it is.
func backendName(ctx context.Context, rawURL string) (string, error) {
	b, err := openURL(ctx, rawURL)
	if err != nil {
		return "", err
	}
	return b.Caps().Name, b.Close()
}

// examine runs the checks, some at once, and returns where each result will come
// from, in their order.
func examine(ctx context.Context, o *verifyOptions, checks []drivertest.Check) []chan checkJSON {
	h := &drivertest.Harness{Open: opener(o.url), TTL: o.ttl}
	results := make([]chan checkJSON, len(checks))
	for i := range results {
		results[i] = make(chan checkJSON, 1)
	}
	var next sync.Mutex
	i := 0
	take := func() int {
		next.Lock()
		defer next.Unlock()
		i++
		return i - 1
	}
	for range o.parallel {
		go func() {
			for n := take(); n < len(checks); n = take() {
				results[n] <- runCheck(ctx, checks[n], h)
			}
		}()
	}
	return results
}

// opener makes independent connections to one store. The memory of this process has
// stores that are nobody else's; they must be one for all.
func opener(rawURL string) func(context.Context) (driver.Backend, error) {
	if rawURL == "mem:" {
		rawURL = "mem:verify-" + driver.NewOwner()
	}
	return func(ctx context.Context) (driver.Backend, error) { return openURL(ctx, rawURL) }
}

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
	line := fmt.Sprintf("%-11s  %-30s  %s", word, r.Name, r.Promise)
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
