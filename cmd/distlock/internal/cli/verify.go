package cli

import (
	"context"
	"errors"
	"regexp"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
)

const verifyHelp = `Verify runs the checks that distlock's own backends must pass against your server,
and prints a line for each promise: ok, not claimed (the server can't, and says so),
or BROKEN with the reason. It is safe beside other users: it works on locks with
random names and gives them back. It takes 20 connections at most, and half of those
that a MySQL, MariaDB or PostgreSQL has left, and runs fewer checks at once for that.

A check is not run when the server can't be reached or refuses a connection, and when
the time is up. That says nothing of the promise.

Exit codes: 0 every promise was tried and none is broken; 1 one is broken, or the time
was up; 69 none is broken, but the server could not be reached, refused a connection,
or has too few left for a single check; 64 as that of distlock run.`

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
	o := &verifyOptions{parallel: 16, timeout: 5 * time.Minute}
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
	f.Var(number{&o.parallel, 1, 1000}, "parallel", "how many checks run at once, if the server has connections for them")
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
			a.printf("%-34s  %s\n", c.Name, c.Promise)
		}
		return nil
	}
	ctx, cancel := interruptible()
	defer cancel()
	report := verifyJSON{URL: driver.Redact(o.url), Checks: []checkJSON{}}
	first, _ := capped(o.url, openConns)
	b, err := openURL(ctx, first)
	if err != nil {
		return err
	}
	defer b.Close()
	report.Backend = b.Caps().Name
	bounded, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	r, err := measure(bounded, o, b)
	if err != nil {
		return err
	}
	for _, result := range examine(bounded, o, b, r, checks) {
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

// examine runs the checks, some at once, and returns where each result will come
// from, in their order.
func examine(ctx context.Context, o *verifyOptions, b driver.Backend, r room, checks []drivertest.Check) []chan checkJSON {
	limited, _ := capped(o.url, r.conns)
	h := &drivertest.Harness{Open: opener(limited), TTL: o.ttl, Refuses: refuser(ctx, b), Serial: r.serial, Holds: r.holds}
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
	for range r.lanes {
		go func() {
			for n := take(); n < len(checks); n = take() {
				results[n] <- runCheck(ctx, checks[n], h)
			}
		}()
	}
	return results
}

// refuser asks a backend which names its store can't have, as Redis Cluster can't have some
// with braces: then all calls must refuse them. It asks one question at a time, which takes one
// connection.
func refuser(ctx context.Context, b driver.Backend) func(name string) bool {
	i, ok := b.(driver.Inspector)
	if !ok {
		return nil
	}
	var one sync.Mutex
	return func(name string) bool {
		one.Lock()
		defer one.Unlock()
		_, err := i.Inspect(ctx, name)
		return errors.Is(err, driver.ErrInvalid)
	}
}

// opener makes independent connections to one store. The memory of this process has
// stores that are nobody else's; they must be one for all.
func opener(rawURL string) func(context.Context) (driver.Backend, error) {
	if rawURL == "mem:" {
		rawURL = "mem:verify-" + driver.NewOwner()
	}
	return func(ctx context.Context) (driver.Backend, error) { return openURL(ctx, rawURL) }
}
