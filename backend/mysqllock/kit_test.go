package mysqllock

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

var (
	refused = locktest.Held
	release = locktest.Release
	until   = locktest.Eventually
)

// long is a TTL that doesn't end within a test.
const long = time.Hour

// connect opens a URL like another process.
func connect(t testing.TB, url string) *Backend {
	t.Helper()
	b := must.Get(Open(context.Background(), url))(t)
	t.Cleanup(func() {
		expect.OK(t, b.Close())
	})
	return b
}

// freshDatabase returns the URL of a new database on the shared server for a strategy, and a pool to
// inspect it.
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

// do runs statements of another program.
func do(t testing.TB, db *sql.DB, statements ...string) {
	t.Helper()
	for _, text := range statements {
		must.OK(t, expect.Err(db.ExecContext(t.Context(), text)), text)
	}
}

// ask returns the number that a query selects.
func ask(t testing.TB, db *sql.DB, query string, args ...any) (n int64) {
	t.Helper()
	must.OK(t, db.QueryRowContext(t.Context(), query, args...).Scan(&n), query)
	return n
}

func wantIs(t testing.TB, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("got %v; want %v", err, target)
	}
}

// patient bounds waits for events that must happen.
const patient = time.Minute

// rowPool opens a pool. change may be nil.
func rowPool(t testing.TB, rawURL string, change func(*mysql.Config)) *sql.DB {
	t.Helper()
	c := must.Get(mysql.ParseDSN(testserver.MariaDBSource(rawURL)))(t)
	c.InterpolateParams = false
	if change != nil {
		change(c)
	}
	connector := must.Get(mysql.NewConnector(c))(t)
	db := sql.OpenDB(connector)
	t.Cleanup(func() { db.Close() })
	return db
}

// rowOn returns a backend on a pool.
func rowOn(t testing.TB, db *sql.DB) *Backend {
	t.Helper()
	b := must.Get(New(t.Context(), db, &Options{Create: true}))(t)
	t.Cleanup(func() {
		expect.OK(t, b.Close())
	})
	return b
}

// rowAt returns a backend with its own pool.
func rowAt(t testing.TB, rawURL string) *Backend {
	t.Helper()
	return rowOn(t, rowPool(t, rawURL, nil))
}

// asks returns a request of a new owner.
func asks(name string, mode driver.Mode) driver.Request {
	return driver.Request{
		Hold:   driver.Hold{Name: name, Owner: driver.NewOwner(), Mode: mode, TTL: 10 * time.Minute},
		Limit:  2,
		Fences: 1,
	}
}

// renews wants a renewal to have this answer. On a busy machine others may lock the row for so long that there is none.
func renews(t testing.TB, b driver.Backend, r driver.Request, want error) {
	t.Helper()
	err := b.Renew(t.Context(), []driver.Hold{r.Hold})[0]
	for end := time.Now().Add(patient); err != nil && !errors.Is(err, driver.ErrLost) && !driver.Final(err) && time.Now().Before(end); {
		err = b.Renew(t.Context(), []driver.Hold{r.Hold})[0]
	}
	must.Be(t, err, want, "renew")
}

// notifierOf returns a backend's notifier when it has an address.
func notifierOf(t testing.TB, b *Backend) *notifier {
	t.Helper()
	r := asks("its notifier "+driver.NewOwner(), driver.Exclusive)
	take(t, b, r)
	release(t, b, r)
	n := b.strategy.(*rowStrategy).store.notifier
	until(t, "the notifier is ready", func() bool { return n.address() != "" })
	return n
}

// address is Address, once the backend has asked for it.
func (n *notifier) address() string { return n.Address(n.id, 0) }
