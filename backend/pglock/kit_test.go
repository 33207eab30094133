package pglock

import (
	"context"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/jackc/pgx/v5"
)

func TestMain(m *testing.M) {
	idleCheck = 300 * time.Millisecond
	os.Exit(testserver.Run(m))
}

// with is a URL with more parameters: key, value, key, value.
func with(t testing.TB, rawURL string, params ...string) string {
	t.Helper()
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	for i := 0; i < len(params); i += 2 {
		q.Set(params[i], params[i+1])
	}
	u.RawQuery = q.Encode()
	return u.String()
}

// open opens a URL, for the test's time.
func open(t testing.TB, rawURL string) *Backend {
	t.Helper()
	b, err := Open(t.Context(), rawURL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// fresh is the URL of a database of the test's own, in which tables are made.
func fresh(t testing.TB) string {
	t.Helper()
	return with(t, testserver.SharedPostgres(t).Database(t), "create", "true")
}

// hasty is a database that answers before what it has written is on the disk, for tests
// that write a lot and in which nothing crashes.
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

// request is one for a lock that is held alone.
func request(name string) driver.Request {
	return driver.Request{Hold: driver.Hold{Name: name, Owner: driver.NewOwner(), Mode: driver.Exclusive, TTL: minutes}, Fences: 1}
}

// take makes sure of a lock.
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
	config, err := pgx.ParseConfig(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

func databaseOf(t testing.TB, rawURL string) string {
	t.Helper()
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Trim(u.Path, "/")
}
