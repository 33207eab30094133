package cli

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

func TestVerify(t *testing.T) {
	for _, url := range []string{"mem:", "mem:shared", lockFile(t) + "?busy_timeout=1m"} {
		t.Run(url, func(t *testing.T) {
			t.Parallel()
			code, out, err := inProcess("verify", "-v", url, "--run", "^(caps|exclusion|fence|release|cut|refused)/", "--ttl", "1s")
			if code != 0 || err != "" {
				t.Fatalf("got %d, %q\n%s", code, err, out)
			}
			for _, want := range []string{"\nok            fence/", "\nnot testable  cut/acquire ", "\nnot testable  refused/wait ", "keeps its promises", " 0 not claimed", " 0 broken, 0 not run\n"} {
				if !strings.Contains(out, want) {
					t.Errorf("no %q in\n%s", want, out)
				}
			}
		})
	}
}

// Without -v, what is kept is a number.
func TestVerifyIsShort(t *testing.T) {
	code, out, err := inProcess("verify", "mem:", "--run", "^(caps|revoke|cut)/")
	if code != 0 || err != "" || strings.Count(out, "\n") != 1 || !strings.HasPrefix(out, "mem: keeps its promises: ") || strings.Contains(out, " 0 not testable") {
		t.Errorf("got %d, %q, %q", code, out, err)
	}
	report := verifyJSON{URL: "redis://h"}
	for range 10 {
		report.add(checkJSON{Result: resultNotRun})
	}
	if got := report.verdict(); got != "was not tried in full" {
		t.Errorf("got %q", got)
	}
	report.add(checkJSON{Result: resultBroken})
	if got := report.verdict(); got != "breaks promises" {
		t.Errorf("got %q", got)
	}
}

func TestVerifyJSON(t *testing.T) {
	code, out, err := inProcess("verify", "--json", "mem:", "--run", "^caps/")
	var report map[string]any
	if jsonErr := json.Unmarshal([]byte(out), &report); jsonErr != nil || code != 0 || err != "" {
		t.Fatalf("got %d, %q, %q, %v", code, out, err, jsonErr)
	}
	checks := report["checks"].([]any)
	if n := len(checks); n == 0 || report["ok"].(float64)+report["not_claimed"].(float64)+report["not_testable"].(float64) != float64(n) || report["broken"].(float64) != 0 {
		t.Errorf("got %s", out)
	}
	for _, key := range []string{"name", "promise", "result", "took_ms"} {
		if _, ok := checks[0].(map[string]any)[key]; !ok {
			t.Errorf("no %q in %s", key, out)
		}
	}
}

func TestVerifyList(t *testing.T) {
	code, out, _ := inProcess("verify", "--list")
	if code != 0 || strings.Count(out, "\n") != len(drivertest.Checks()) {
		t.Errorf("got %d, %s", code, out)
	}
}

func TestVerifyTimeUp(t *testing.T) {
	code, out, _ := inProcess("verify", "mem:", "--timeout", "1ns", "--run", "^caps/")
	if code != 1 || !strings.Contains(out, "not run       caps/") || !strings.Contains(out, "--timeout") {
		t.Errorf("got %d, %s", code, out)
	}
}

func TestVerifyUnreachable(t *testing.T) {
	if code, _, err := inProcess("verify", "redis://127.0.0.1:1"); code != exitUnreachable || strings.Count(err, "\n") != 1 {
		t.Errorf("got %d, %q", code, err)
	}
}

// Names that a store can't have are no broken promise, if all calls refuse them.
func TestLongVerifyCluster(t *testing.T) {
	url := "redis+cluster://" + testserver.SharedRedisCluster(t).Addrs()[0]
	code, out, err := inProcess("verify", url, "--run", "^names/(start|punctuation|refused)$")
	if code != 0 || !strings.Contains(out, "3 kept, 0 not claimed") {
		t.Errorf("exit code %d\n%s%s", code, out, err)
	}
}

// greedy matches checks that take many connections when nothing limits them.
const greedy = "^(exclusion/race|names/spaces|renew/(batch|big-batch)|watch/release|close/goroutines)$"

// sqlServer is a server as far as these tests use it.
type sqlServer interface {
	Database(tb testing.TB) string
	User(tb testing.TB, database, password string, grants ...string) string
	DB(tb testing.TB, url string) *sql.DB
	Exec(tb testing.TB, statements ...string)
}

// kind is a kind of server with its usual limit.
type kind struct {
	srv        sqlServer
	grant      string
	source     func(string) string // what sql.Open wants of a URL
	driver     string
	count      string // counts the connections of a user
	limit      string // gives a user a limit
	strategies []string
}

func kinds(t *testing.T) map[string]kind {
	return map[string]kind{
		"MariaDB": {
			srv: testserver.MariaDB(t, testserver.MariaDBOptions{Args: []string{"--max-connections=151"}}), grant: "ALL ON *.*",
			source: testserver.MariaDBSource, driver: "mysql",
			count:      "SELECT COUNT(*) FROM information_schema.processlist WHERE user = '%s'",
			limit:      "GRANT USAGE ON *.* TO %s@'%%' WITH MAX_USER_CONNECTIONS %d",
			strategies: []string{"strategy=row", "strategy=forupdate"},
		},
		"PostgreSQL": {
			srv: testserver.Postgres(t, testserver.PostgresOptions{Settings: []string{"max_connections=100"}}), grant: "CREATE, USAGE ON SCHEMA public",
			source: func(url string) string { return url }, driver: "pgx",
			count:      "SELECT COUNT(*) FROM pg_stat_activity WHERE usename = '%s'",
			limit:      "ALTER ROLE %s CONNECTION LIMIT %d",
			strategies: []string{"strategy=row", "strategy=advisory"},
		},
	}
}

// site is a database of a server, with a user of its own.
type site struct {
	kind
	t        *testing.T
	database string // the administrator's URL
	url      string // the user's
	user     string
}

func newSite(t *testing.T, k kind, params string) *site {
	s := &site{kind: k, t: t, database: k.srv.Database(t)}
	u := must.Get(url.Parse(k.srv.User(t, s.database, "pw", k.grant)))(t)
	s.user = u.User.Username()
	u.RawQuery = strings.TrimPrefix(u.RawQuery+"&create=true&"+params, "&")
	s.url = u.String()
	return s
}

// leave lets the server take n connections of the user.
func (s *site) leave(n int) { s.srv.Exec(s.t, fmt.Sprintf(s.limit, s.user, n)) }

// verify runs the command, beside another client that makes one connection after the other as
// the same user, and answers how many connections the server counted for both.
func (s *site) verify() (code int, out string, most int) {
	s.t.Helper()
	admin := s.srv.DB(s.t, s.database)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	during := func(f func()) {
		wg.Go(func() {
			tick := time.NewTicker(5 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-stop:
					return
				case <-tick.C:
					f()
				}
			}
		})
	}
	during(func() {
		n := 0
		expect.OK(s.t, admin.QueryRow(fmt.Sprintf(s.count, s.user)).Scan(&n))
		most = max(most, n)
	})
	during(func() {
		expect.OK(s.t, s.connect(), "another client")
	})
	code, out, errs := inProcess("verify", s.url, "--run", greedy)
	close(stop)
	wg.Wait()
	return code, out + errs, most
}

// connect makes a connection of the user and ends it.
func (s *site) connect() error {
	u, err := url.Parse(s.url)
	if err != nil {
		return err
	}
	q := u.Query()
	for _, ours := range []string{"create", "strategy"} {
		q.Del(ours)
	}
	u.RawQuery = q.Encode()
	db, err := sql.Open(s.driver, s.source(u.String()))
	if err != nil {
		return err
	}
	defer db.Close()
	return db.PingContext(s.t.Context())
}

// Others are never refused, and the server counts 20 connections of verify at most, whether it
// has its usual limit or few left.
func TestLongVerifyBesideOthers(t *testing.T) {
	t.Parallel()
	for name, k := range kinds(t) {
		for i, params := range k.strategies {
			s := newSite(t, k, params)
			code, out, most := s.verify()
			if code != 0 || !strings.Contains(out, " 0 broken, 0 not run\n") {
				t.Errorf("%s, %s: exit code %d\n%s", name, params, code, out)
			}
			t.Logf("%s, %s: %d connections", name, params, most)
			if most > 20+3 { // 3 for the other client
				t.Errorf("%s, %s: the server counted %d connections, want 20 at most", name, params, most)
			}
			s.leave(14) // the other client has up to 4, as some that it closed still count
			code, out, most = s.verify()
			t.Logf("%s, %s: %d connections of 14", name, params, most)
			switch {
			case i == 0 && code != 0:
				t.Errorf("%s, %s, few left: exit code %d\n%s", name, params, code, out)
			case i > 0 && (code != exitUnreachable || !strings.Contains(out, "not run: a check needs 19 connections, and half of those")):
				t.Errorf("%s, %s, few left: exit code %d\n%s", name, params, code, out)
			}
		}
		s := newSite(t, k, k.strategies[0])
		s.leave(4)
		if code, out, errs := inProcess("verify", s.url, "--run", greedy); code != exitUnreachable || !strings.Contains(errs, "not run") {
			t.Errorf("%s, 4 left: exit code %d\n%s%s", name, code, out, errs)
		}
	}
}

// A check that has no connection says nothing of a promise.
func TestVerifyRefused(t *testing.T) {
	for _, refusal := range []error{
		&mysql.MySQLError{Number: 1040, Message: "Too many connections"},
		&mysql.MySQLError{Number: 1203, Message: "User has too many"},
		&pgconn.PgError{Code: "53300", Message: "too many clients already"},
		errors.New("ERR max number of clients reached"),
	} {
		h := &drivertest.Harness{Open: refusing(refusal)}
		checks := checksNamed(t, "exclusion/race", "names/case", "release/twice")
		for _, c := range checks {
			r := runCheck(t.Context(), c, h)
			if r.Result != resultNotRun || !strings.Contains(r.Reason, reasonUnreachable) {
				t.Errorf("%v: got %+v", refusal, r)
			}
		}
	}
	h := &drivertest.Harness{Open: refusing(errors.New("disk full"))}
	if r := runCheck(t.Context(), checksNamed(t, "exclusion/race")[0], h); r.Result != resultBroken {
		t.Errorf("any other error: got %+v", r)
	}
}

// fullBackend gets no connection for an attempt.
type fullBackend struct {
	driver.Backend
	err error
}

func (b *fullBackend) Acquire(context.Context, driver.Request) (driver.Grant, error) {
	return driver.Grant{}, b.err
}

func refusing(err error) func(context.Context) (driver.Backend, error) {
	return func(context.Context) (driver.Backend, error) { return &fullBackend{memlock.New(), err}, nil }
}

func checksNamed(t *testing.T, names ...string) []drivertest.Check {
	t.Helper()
	o := &verifyOptions{only: "^(" + strings.Join(names, "|") + ")$"}
	checks, err := o.checks()
	if err != nil || len(checks) != len(names) {
		t.Fatalf("got %d checks, %v", len(checks), err)
	}
	return checks
}

// A server that ends while checks run is no broken promise either.
func TestVerifyServerEnds(t *testing.T) {
	opened := 0
	h := &drivertest.Harness{Serial: true, Open: func(ctx context.Context) (driver.Backend, error) {
		if opened++; opened > 3 {
			return openURL(ctx, "redis://127.0.0.1:1")
		}
		return refusing(io.ErrUnexpectedEOF)(ctx)
	}}
	if r := runCheck(t.Context(), checksNamed(t, "release/twice")[0], h); r.Result != resultNotRun {
		t.Errorf("got %+v", r)
	}
}

// The exit code tells a broken promise from a server that can't be reached, and that from
// time that was up.
func TestVerifyExitCodes(t *testing.T) {
	broken := checkJSON{Result: resultBroken}
	unreached := checkJSON{Result: resultNotRun, Reason: reasonUnreachable + "dial"}
	late := checkJSON{Result: resultNotRun, Reason: reasonTime}
	for _, c := range []struct {
		results []checkJSON
		code    int
	}{
		{[]checkJSON{{Result: resultOK}, {Result: resultNotClaimed}}, 0},
		{[]checkJSON{{Result: resultOK}, unreached}, exitUnreachable},
		{[]checkJSON{unreached, late}, exitUnreachable},
		{[]checkJSON{{Result: resultOK}, late}, exitFailure},
		{[]checkJSON{broken, unreached}, exitFailure},
	} {
		report := &verifyJSON{}
		for _, r := range c.results {
			report.add(r)
		}
		if got := codeOf((&app{out: io.Discard}).conclude(&verifyOptions{}, report)); got != c.code {
			t.Errorf("%+v: exit code %d, want %d", c.results, got, c.code)
		}
	}
}

func TestCapped(t *testing.T) {
	for _, c := range []struct {
		url, want string
		pools     bool
	}{
		{"redis://h:6379/0?layout=string", "redis://h:6379/0?layout=string", false},
		{"mysql://h/app", "mysql://h/app?max_connections=5", true},
		{"mysql://h/app?max_connections=9", "mysql://h/app?max_connections=5", true},
		{"postgres://h/app?max_connections=4", "postgres://h/app?max_connections=4", true},
		{"shard:?member=a%3Dmysql%3A%2F%2Fh%2Fapp", "shard:?member=a%3Dmysql%3A%2F%2Fh%2Fapp%3Fmax_connections%3D5", true},
	} {
		if got, pools := capped(c.url, 5); got != c.want || pools != c.pools {
			t.Errorf("%s: got %s, %v; want %s", c.url, got, pools, c.want)
		}
	}
}

func TestSchema(t *testing.T) {
	for _, test := range []struct{ args, says string }{
		{"schema mysql", "CREATE TABLE IF NOT EXISTS `distlock_locks`"},
		{"schema mysql --table app.locks", "CREATE TABLE IF NOT EXISTS `app`.`locks`"},
		{"schema mysql --strategy forupdate", "CREATE TABLE IF NOT EXISTS `distlock_mutexes`"},
		{"schema mysql --strategy session", "CREATE TABLE IF NOT EXISTS `distlock_sessions`"},
		{"schema postgres", `CREATE TABLE IF NOT EXISTS "distlock_locks"`},
		{"schema postgres --table app.locks", `CREATE TABLE IF NOT EXISTS "app"."locks"`},
		{"schema postgres --strategy advisory", "CREATE "},
		{"schema --help", "distlock schema mysql|postgres [flags]"},
		{"help schema", "for mysql row, forupdate, session; for postgres row, advisory"},
	} {
		code, out, err := inProcess(strings.Fields(test.args)...)
		if code != 0 || !strings.Contains(out, test.says) || err != "" {
			t.Errorf("%s: got %d, %q, %q; want %q", test.args, code, out, err, test.says)
		}
	}
}
