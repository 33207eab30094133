package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/spf13/cobra"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/mysqllock"
	"github.com/distlock/distlock/backend/pglock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
)

const verifyHelp = `Verify runs distlock's conformance checks against your server, and prints what is broken and
a summary. With -v it prints a line for each promise: ok, not claimed (this kind of server
does not support it, and says so), not testable (it needs a broken network or a right that is
withdrawn, which only the tests of the backend have), or BROKEN with the reason. It is safe
beside other users: it uses locks with random names and releases them. It opens at most 20
connections, and at most half of the free ones of a MySQL, MariaDB or PostgreSQL server; with few
connections, it runs fewer checks at once.

A check counts as not run if the server can't be reached or refuses a connection, or
if the time is up. Then its promise may be kept or broken.

Exit codes: 0 all checks ran, and no promise is broken; 1 a promise is broken, or the
time was up; 69 no promise is broken, but the server could not be reached, refused a
connection, or has too few of them for a single check; 64 wrong usage.`

// verifyOptions are the arguments and flags of verify.
type verifyOptions struct {
	url      string
	only     string
	list     bool
	json     bool
	verbose  bool
	parallel int
	ttl      time.Duration
	timeout  time.Duration
}

func (a *app) verifyCommand() *cobra.Command {
	o := &verifyOptions{parallel: 16, timeout: 5 * time.Minute}
	cmd := &cobra.Command{
		Use:   "verify URL",
		Short: "Check that a server keeps distlock's promises",
		Long:  verifyHelp,
		Example: `  distlock verify redis://localhost:6379
  distlock verify --run '^fence/|^release/' sqlite:/tmp/locks.db
  distlock verify --list`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 && a.url.set {
				args = []string{a.url.s}
			}
			return o.parse(args)
		},
		RunE: func(*cobra.Command, []string) error { return a.verify(o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.only, "run", "", "run only the checks whose name matches this regular expression")
	f.BoolVar(&o.list, "list", false, "list the checks without running them")
	f.BoolVar(&o.json, "json", false, "print a JSON object")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "print a line for each promise")
	f.Var(number(&o.parallel, 1, 1000), "parallel", "number of checks at once, if the server has enough connections")
	f.Var(duration(&o.ttl, false), "ttl", "TTL of locks that are left to expire; give a longer one for a slow server (default 300ms, or the server's minimum)")
	f.Var(duration(&o.timeout, false), "timeout", "time for all checks together")
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

// checks returns the checks to run.
func (o *verifyOptions) checks() ([]drivertest.Check, error) {
	only, err := regexp.Compile(o.only)
	if err != nil {
		return nil, usage("verify: --run: %w; want a regular expression such as ^fence/", err)
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

func (a *app) verify(o *verifyOptions) (err error) {
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
	defer func() { err = unlessCaught(ctx, err) }()
	report := verifyJSON{URL: o.url, Checks: []checkJSON{}}
	if len(secretsIn(o.url)) > 0 {
		report.URL = driver.Redact(o.url)
	}
	first, _ := capped(o.url, openConns)
	b, err := openURL(ctx, first)
	if err != nil {
		return err
	}
	defer b.Close()
	report.Backend = b.Caps().Name
	bounded, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	r, err := measureLimits(bounded, o, b)
	if err != nil {
		return err
	}
	p := newProgress(a.err)
	for i, result := range runChecks(bounded, o, b, r, checks) {
		p.show("distlock: %d of %d checks; %s", i, len(checks), checks[i].Name)
		r := <-result
		p.clear()
		report.add(r)
		if !o.json && (o.verbose || r.Result == resultBroken || r.Result == resultNotRun && report.NotRun <= mostNotRun) {
			a.printf("%s\n", scrub(r.line(), a.secrets))
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return a.conclude(o, &report)
}

// runChecks starts the checks, some at once, and returns a channel for each result, in their order.
func runChecks(ctx context.Context, o *verifyOptions, b driver.Backend, r limits, checks []drivertest.Check) []chan checkJSON {
	limited, _ := capped(o.url, r.conns)
	h := &drivertest.Harness{
		Open: opener(limited), TTL: o.ttl, Refuses: refuser(ctx, b), Serial: r.serial, Holds: r.holds,
		KindsApart: true, // a store may have another library's form
	}
	results, next := make([]chan checkJSON, len(checks)), make(chan int, len(checks))
	for i := range results {
		results[i] = make(chan checkJSON, 1)
		next <- i
	}
	close(next)
	for range r.parallel {
		go func() {
			for i := range next {
				results[i] <- runCheck(ctx, checks[i], h)
			}
		}()
	}
	return results
}

// refuser returns a function that reports whether the store rejects a name, as Redis Cluster rejects
// some with braces. It makes one call at a time, so it takes one connection.
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

// opener returns a function that makes independent connections to one store. Each Open of mem: would
// make another store, so it gets a name.
func opener(rawURL string) func(context.Context) (driver.Backend, error) {
	if rawURL == "mem:" {
		rawURL = "mem:verify-" + driver.NewOwner()
	}
	return func(ctx context.Context) (driver.Backend, error) { return openURL(ctx, rawURL) }
}

// mostNotRun is how many checks that were not run are shown: they share a reason.
const mostNotRun = 3

const (
	// mostConns is the greatest number of connections that verify opens, as the server counts them.
	mostConns = 20

	// openConns bounds the first backend, which only describes the server. It is the smallest
	// number that backends with locks on connections accept.
	openConns = 3

	// perCheck is how many backends of a check the server may count: the check's two, and the two
	// of the check before, which are closed.
	perCheck = 4
)

// limits is the part of a server that the checks may use.
type limits struct {
	parallel int  // number of checks at once
	conns    int  // for each backend with a pool; 0: unlimited
	holds    int  // on each backend at once; 0: unlimited
	serial   bool // the modes of a check run one after the other
}

// connCounter is a backend that knows how many connections of its server are free.
type connCounter interface {
	FreeConnections(ctx context.Context) (int, error)
}

// measureLimits computes how much verify may use, including b: half of the free connections, and
// mostConns at most. Memory and files have no connections.
func measureLimits(ctx context.Context, o *verifyOptions, b driver.Backend) (limits, error) {
	u, err := driver.ParseURL(o.url)
	if err != nil || u.Scheme == "mem" || u.Scheme == "sqlite" {
		return limits{parallel: o.parallel}, err
	}
	r, own, least := limits{conns: 1, serial: true}, 1, 1
	if _, pools := capped(o.url, openConns); pools {
		r.conns = 2 // one listens
		if b.Caps().Session {
			r.conns, own, least = 4, openConns, 4 // two hold, one waits, and one does the rest
		}
	}
	budget := mostConns
	if g, ok := b.(connCounter); ok {
		free, err := g.FreeConnections(ctx)
		if err != nil {
			return limits{}, exit(exitUnreachable, "verify: not run: can't find out how many connections are free: %w", err)
		}
		budget = min(budget, (free+own)/2)
	}
	r.conns = min(r.conns, (budget-own)/perCheck)
	if r.conns < least {
		return limits{}, exit(exitUnreachable, "verify: not run: a check needs %d connections, and half of those that are free for this user are %d; close some, or raise the limit of the server, the user or the database",
			own+perCheck*least, budget)
	}
	r.parallel = min(o.parallel, (budget-own)/(perCheck*r.conns))
	if r.conns > 2 && b.Caps().Session { // each hold has a connection
		r.holds = r.conns - 2
	}
	return r, nil
}

// capped returns rawURL with a limit for its pools, including the pools of members, and reports
// whether it has any. A lower limit in rawURL stays.
func capped(rawURL string, conns int) (limited string, pools bool) {
	const key = "max_connections"
	u, err := driver.ParseURL(rawURL)
	if err != nil || conns == 0 {
		return rawURL, false
	}
	q := u.Query()
	for _, values := range q {
		for i, value := range values {
			at := strings.LastIndex(value[:max(strings.Index(value, "://"), 0)], "=") + 1 // a member may have a name
			member, is := capped(value[at:], conns)
			values[i], pools = value[:at]+member, pools || is
		}
	}
	if slices.Contains([]string{"mysql", "postgres", "postgresql"}, u.Scheme) {
		pools = true
		if own, err := strconv.Atoi(q.Get(key)); !q.Has(key) || err == nil && own > conns {
			q.Set(key, strconv.Itoa(conns))
		}
	}
	if !pools {
		return rawURL, false
	}
	u.RawQuery = q.Encode()
	return u.String(), true
}

// The results of a check.
const (
	resultOK         = "ok"
	resultNotClaimed = "not claimed"
	resultUntestable = "not testable"
	resultBroken     = "broken"
	resultNotRun     = "not run"
)

// The reasons for not running a check, or how they begin.
const (
	reasonTime        = "the time was up; give a longer --timeout"
	reasonInterrupted = "verify was interrupted"
	reasonUnreachable = "the server can't be reached, or refuses connections: "
)

// checkJSON is the result of one check.
type checkJSON struct {
	Name    string `json:"name"`
	Promise string `json:"promise"`
	Result  string `json:"result"`           // ok, not claimed, not testable, broken, not run
	Reason  string `json:"reason,omitempty"` // of broken and not run
	TookMS  int64  `json:"took_ms"`
}

// fromInside reports whether a check breaks the network between a backend and its server, or withdraws a right.
func fromInside(check string) bool {
	return strings.HasPrefix(check, "cut/") || strings.HasPrefix(check, "refused/")
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
	case errors.Is(err, drivertest.ErrNotClaimed) && fromInside(c.Name):
		r.Result = resultUntestable
	case errors.Is(err, drivertest.ErrNotClaimed):
		r.Result = resultNotClaimed
	case ctx.Err() != nil:
		r.Result, r.Reason = resultNotRun, reasonTime
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			r.Reason = reasonInterrupted
		}
	case unreachable(err):
		r.Result, r.Reason = resultNotRun, reasonUnreachable+oneLine(err)
	default:
		r.Result, r.Reason = resultBroken, oneLine(err)
		if err := probe(ctx, h); err != nil {
			r.Result, r.Reason = resultNotRun, reasonUnreachable+oneLine(err)
		}
	}
	return r
}

func oneLine(err error) string { return plain(joinLines(err.Error())) }

// probe returns an error if the server can't be reached: the check may have failed for that.
func probe(ctx context.Context, h *drivertest.Harness) error {
	b, err := h.Open(ctx)
	if err == nil {
		b.Close()
	}
	if err == nil || !unreachable(err) {
		return nil
	}
	return err
}

// unreachable reports whether an error means that a connection could not be made. Open returns
// ErrUnavailable then; a call that needs another connection returns errors of other kinds.
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

// The errors of servers that accept no more connections.
var (
	fullMySQL    = []uint16{1040, 1203, 1226} // limit of the server, the user, the account
	fullPostgres = []string{"53300", "57P03"} // limit of the server, the user or the database; the server is starting or stopping
	fullRedis    = "max number of clients reached"
)

// line formats the result as a line.
func (c checkJSON) line() string {
	word := c.Result
	if word == resultBroken {
		word = "BROKEN"
	}
	line := fmt.Sprintf("%-12s  %-34s  %s", word, c.Name, c.Promise)
	if c.Reason != "" {
		line += " -- " + c.Reason
	}
	return line
}

// verifyJSON is the output of verify --json.
type verifyJSON struct {
	URL        string      `json:"url"`
	Backend    string      `json:"backend"`
	OK         int         `json:"ok"`
	NotClaimed int         `json:"not_claimed"`
	Untestable int         `json:"not_testable"`
	Broken     int         `json:"broken"`
	NotRun     int         `json:"not_run"`
	unreached  int         // part of NotRun
	Checks     []checkJSON `json:"checks"`
}

func (v *verifyJSON) add(r checkJSON) {
	v.Checks = append(v.Checks, r)
	switch r.Result {
	case resultOK:
		v.OK++
	case resultNotClaimed:
		v.NotClaimed++
	case resultUntestable:
		v.Untestable++
	case resultBroken:
		v.Broken++
	case resultNotRun:
		v.NotRun++
		if strings.HasPrefix(r.Reason, reasonUnreachable) {
			v.unreached++
		}
	}
}

// verdict is the result in a word or two.
func (v *verifyJSON) verdict() string {
	switch {
	case v.Broken > 0:
		return "breaks promises"
	case v.NotRun > 0:
		return "was not tried in full"
	}
	return "keeps its promises"
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
		a.printf("%s %s: %d kept, %d not claimed, %d not testable from outside, %d broken, %d not run\n",
			plain(v.URL), v.verdict(), v.OK, v.NotClaimed, v.Untestable, v.Broken, v.NotRun)
	}
	switch {
	case v.Broken == 0 && v.unreached > 0:
		return &exitError{code: exitUnreachable}
	case v.Broken > 0 || v.NotRun > 0:
		return &exitError{code: exitFailure}
	}
	return nil
}

const schemaHelp = `Schema prints the statements that create distlock's tables, for a database whose users
may not create tables. They skip existing tables, so you can run them again.

--strategy and --table correspond to the parameters strategy and table of a URL.
Exit codes: 0, and 64 for wrong usage.`

func (a *app) schemaCommand() *cobra.Command {
	var strategy, table string
	cmd := &cobra.Command{
		Use:   "schema mysql|postgres",
		Short: "Print the SQL that creates distlock's tables",
		Long:  schemaHelp,
		Example: `  distlock schema mysql | mysql -h db1 -u admin -p app
  distlock schema postgres | psql postgres://admin@db1/app
  distlock schema mysql --strategy session --table app_locks`,
		ValidArgs: []string{"mysql", "postgres"},
		Args:      exactly(1, "mysql or postgres"),
		RunE:      func(_ *cobra.Command, args []string) error { return a.schema(args[0], strategy, table) },
	}
	f := cmd.Flags()
	f.StringVar(&strategy, "strategy", "row", "strategy of the locks: for mysql "+listed(mysqllock.Strategies())+"; for postgres "+listed(postgresStrategies))
	f.StringVar(&table, "table", "", "name of the table, with or without its schema (default: the backend's own)")
	return cmd
}

var postgresStrategies = []pglock.Strategy{pglock.Row, pglock.Advisory}

// listed joins words for a sentence.
func listed[S ~string](words []S) string {
	var list []string
	for _, w := range words {
		list = append(list, string(w))
	}
	return strings.Join(list, ", ")
}

func (a *app) schema(database, strategy, table string) error {
	var text, strategies string
	switch database {
	case "mysql":
		strategies = listed(mysqllock.Strategies())
		text = mysqllock.Schema(mysqllock.Options{Strategy: mysqllock.Strategy(strategy), Table: table})
	case "postgres":
		strategies = listed(postgresStrategies)
		text = pglock.Schema(pglock.Options{Strategy: pglock.Strategy(strategy), Table: table})
	default:
		return usage("schema: unknown database %q; want mysql or postgres", database)
	}
	switch {
	case !slices.Contains(strings.Split(strategies, ", "), strategy):
		return usage("schema: --strategy %s: want one of %s", quoted(strategy), strategies)
	case text == "":
		return usage("schema: --table %s: want letters, digits and underscores, such as locks or app.locks", quoted(table))
	}
	a.printf("%s\n", strings.TrimSpace(text))
	return nil
}
