package mysqllock

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// long is a TTL that doesn't end within a test.
const long = time.Hour

// connect opens a URL, as another process would.
func connect(t testing.TB, url string) *Backend {
	t.Helper()
	b, err := Open(context.Background(), url)
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

// freshDatabase is the URL of a fresh database on the shared server, for a strategy, and a pool
// to look into it.
func freshDatabase(t testing.TB, s Strategy) (url string, db *sql.DB) {
	t.Helper()
	srv := testserver.SharedMariaDB(t)
	url = srv.Database(t)
	return url + "?create=true&strategy=" + string(s), srv.DB(t, url)
}

func request(name string, ttl time.Duration) driver.Request {
	return driver.Request{Hold: driver.Hold{Name: name, Owner: driver.NewOwner(), Mode: driver.Exclusive, TTL: ttl}, Fences: 1}
}

func take(t testing.TB, b driver.Backend, r driver.Request) driver.Grant {
	t.Helper()
	g, err := b.Acquire(t.Context(), r)
	if err != nil {
		t.Fatalf("acquire %q: %v", r.Name, err)
	}
	return g
}

func refused(t testing.TB, b driver.Backend, r driver.Request) *driver.HeldError {
	t.Helper()
	g, err := b.Acquire(t.Context(), r)
	var held *driver.HeldError
	if !errors.As(err, &held) {
		t.Fatalf("acquire %q: %+v, %v; want a refusal", r.Name, g, err)
	}
	return held
}

// do runs statements of somebody else.
func do(t testing.TB, db *sql.DB, statements ...string) {
	t.Helper()
	for _, text := range statements {
		if _, err := db.ExecContext(t.Context(), text); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
}

// ask is the answer to a query for one number.
func ask(t testing.TB, db *sql.DB, query string, args ...any) (n int64) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), query, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

func wantIs(t testing.TB, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("got %v; want %v", err, target)
	}
}
