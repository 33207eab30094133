package pglock

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// levels are the parameters of the two kinds of advisory locks.
var levels = map[string][]string{
	"session":     {"strategy", "advisory", "create", "true"},
	"transaction": {"strategy", "advisory", "level", "transaction", "create", "true"},
}

// eachLevel runs a test with a database for each level.
func eachLevel(t *testing.T, test func(t *testing.T, pg *testserver.PostgresServer, url string)) {
	t.Helper()
	for level, params := range levels {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			pg := testserver.SharedPostgres(t)
			test(t, pg, with(t, hastyAt(t, pg), params...))
		})
	}
}

// brief is request with a TTL that ends within the test.
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

// blocked counts those that are waited for.
func blocked(t testing.TB, pg *testserver.PostgresServer, url string) string {
	t.Helper()
	return pg.Ask(t, `SELECT count(*)::text FROM pg_locks JOIN pg_database d ON d.oid = database WHERE locktype = 'advisory' AND NOT granted AND datname = $1`, databaseOf(t, url))
}

// lent opens a pool of database/sql's to a URL with parameters of ours, and a backend on it.
func lent(t *testing.T, rawURL string, level Level, conns int) (*Backend, *sql.DB) {
	t.Helper()
	db, err := sql.Open("pgx", rawURL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	db.SetMaxOpenConns(conns)
	b, err := New(t.Context(), db, &Options{Strategy: Advisory, Level: level, Create: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b, db
}

// within runs what must come to its end, on whatever machine.
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
