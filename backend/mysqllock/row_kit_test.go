package mysqllock

import (
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/sqlrow"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// patient is the bound of waits for what must happen.
const patient = time.Minute

// rowPool opens a pool of its own; change may be nil.
func rowPool(t testing.TB, rawURL string, change func(*mysql.Config)) *sql.DB {
	t.Helper()
	c, err := mysql.ParseDSN(testserver.MariaDBSource(rawURL))
	if err != nil {
		t.Fatal(err)
	}
	c.InterpolateParams = false
	if change != nil {
		change(c)
	}
	connector, err := mysql.NewConnector(c)
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(connector)
	t.Cleanup(func() { db.Close() })
	return db
}

// rowOn is a backend on a pool.
func rowOn(t testing.TB, db *sql.DB) *Backend {
	t.Helper()
	b, err := New(t.Context(), db, &Options{Create: true})
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

// rowAt is a backend with a pool of its own.
func rowAt(t testing.TB, rawURL string) *Backend {
	t.Helper()
	return rowOn(t, rowPool(t, rawURL, nil))
}

// asks is a request of a fresh owner.
func asks(name string, mode driver.Mode) driver.Request {
	return driver.Request{
		Hold:   driver.Hold{Name: name, Owner: driver.NewOwner(), Mode: mode, TTL: 10 * time.Minute},
		Limit:  2,
		Fences: 1,
	}
}

func release(t testing.TB, b driver.Backend, r driver.Request) {
	t.Helper()
	if err := b.Release(t.Context(), r.Hold); err != nil {
		t.Fatal(err)
	}
}

func renews(t testing.TB, b driver.Backend, r driver.Request, want error) {
	t.Helper()
	if err := b.Renew(t.Context(), []driver.Hold{r.Hold})[0]; !errors.Is(err, want) {
		t.Fatalf("renew: %v; want %v", err, want)
	}
}

// until waits for what must come true.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patient); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("not after %v: %s", patient, what)
		}
		time.Sleep(time.Millisecond)
	}
}

// notifierOf returns a backend's notifier when it has an address.
func notifierOf(t testing.TB, b *Backend) *notifier {
	t.Helper()
	n := b.strategy.(*rowStrategy).dialect.notifier
	until(t, "the notifier is ready", func() bool { return n.Address(someKey) != "" })
	return n
}

var someKey = sqlrow.KeyOf("some")
