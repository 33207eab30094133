package pglock

import (
	"context"
	"database/sql"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

func TestMain(m *testing.M) {
	idleCheck = 300 * time.Millisecond
	os.Exit(testserver.Run(m))
}

// with adds parameters to a URL: key, value, key, value.
func with(t testing.TB, rawURL string, params ...string) string {
	t.Helper()
	u := must.Get(url.Parse(rawURL))(t)
	q := u.Query()
	for i := 0; i < len(params); i += 2 {
		q.Set(params[i], params[i+1])
	}
	u.RawQuery = q.Encode()
	return u.String()
}

// open opens a URL for the duration of the test.
func open(t testing.TB, rawURL string) *Backend {
	t.Helper()
	b := must.Get(Open(t.Context(), rawURL))(t)
	t.Cleanup(func() {
		expect.OK(t, b.Close())
	})
	return b
}

// onHandle makes a backend on a handle of the user's.
func onHandle(t testing.TB, rawURL string) *Backend {
	t.Helper()
	b := must.Get(New(t.Context(), testserver.SharedPostgres(t).DB(t, rawURL), &Options{Create: true}))(t)
	t.Cleanup(func() { b.Close() })
	return b
}

// fresh returns the URL of a new database, in which tables may be created.
func fresh(t testing.TB) string {
	t.Helper()
	return with(t, testserver.SharedPostgres(t).Database(t), "create", "true")
}

// hasty returns the URL of a database that answers before its writes are on the disk. It is for tests
// that write a lot and crash nothing.
func hasty(t testing.TB) string {
	t.Helper()
	return hastyAt(t, testserver.SharedPostgres(t))
}

func hastyAt(t testing.TB, pg *testserver.PostgresServer) string {
	t.Helper()
	rawURL := pg.Database(t)
	pg.Exec(t, "ALTER DATABASE "+databaseOf(t, rawURL)+" SET synchronous_commit = off")
	return rawURL
}

// request returns a request for an exclusive lock.
func request(name string) driver.Request {
	return driver.Request{Hold: driver.Hold{Name: name, Owner: driver.NewOwner(), Mode: driver.Exclusive, TTL: minutes}, Fences: 1}
}

// take acquires a lock, or fails the test.
func take(t testing.TB, b driver.Backend, r driver.Request) driver.Grant {
	t.Helper()
	g, err := b.Acquire(context.Background(), r)
	if err != nil {
		t.Fatalf("%s: %v", r.Name, err)
	}
	return g
}

// minutes is a TTL that no test outlasts.
const minutes = 10 * time.Minute

func mustConfig(t testing.TB, rawURL string) *pgx.ConnConfig {
	t.Helper()
	config := must.Get(pgx.ParseConfig(rawURL))(t)
	return config
}

func mustConnector(t testing.TB, rawURL string, opts *Options) *connector {
	t.Helper()
	u := must.Get(driver.ParseURL(rawURL))(t)
	c := must.Get(newConnector(u, opts, nil))(t)
	return c
}

func databaseOf(t testing.TB, rawURL string) string {
	t.Helper()
	u := must.Get(url.Parse(rawURL))(t)
	return strings.Trim(u.Path, "/")
}

// advisoryParams are the parameters of strategy Advisory, and kinds those of all.
var (
	advisoryParams = []string{"strategy", "advisory", "create", "true"}
	kinds          = map[string][]string{"row": nil, "advisory": advisoryParams}
)

// brief returns a request with a TTL that ends within the test.
func brief(name string, ttl time.Duration) driver.Request {
	r := request(name)
	r.TTL = ttl
	return r
}

// lockers counts the advisory locks of a database that are held or waited for.
func lockers(t testing.TB, pg *testserver.PostgresServer, url string) string {
	t.Helper()
	return pg.Ask(t, `SELECT count(*)::text FROM pg_locks JOIN pg_database d ON d.oid = database WHERE locktype = 'advisory' AND datname = $1`, databaseOf(t, url))
}

// blocked counts the advisory locks that are waited for.
func blocked(t testing.TB, pg *testserver.PostgresServer, url string) string {
	t.Helper()
	return pg.Ask(t, `SELECT count(*)::text FROM pg_locks JOIN pg_database d ON d.oid = database WHERE locktype = 'advisory' AND NOT granted AND datname = $1`, databaseOf(t, url))
}

// lent opens a database/sql pool and a backend of strategy Advisory on it.
func lent(t *testing.T, rawURL string, conns int) (*Backend, *sql.DB) {
	t.Helper()
	db := must.Get(sql.Open("pgx", rawURL))(t)
	t.Cleanup(func() { db.Close() })
	db.SetMaxOpenConns(conns)
	b := must.Get(New(t.Context(), db, &Options{Strategy: Advisory, Create: true}))(t)
	t.Cleanup(func() { b.Close() })
	return b, db
}

// within fails the test if f does not return, even on a slow machine.
func within(t *testing.T, what string, f func(ctx context.Context)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(ctx)
	}()
	select {
	case <-done:
	case <-time.After(2 * time.Minute):
		t.Fatalf("%s does not end", what)
	}
}
