package pglock

import (
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// A migration that builds indexes concurrently, under a lock, waits for each older snapshot of its database. Another instance that
// waits for the lock keeps none.
func TestIndexesAreBuiltWhileOthersWait(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgres(t)
	plain := pg.Database(t)
	url := with(t, plain, levels["transaction"]...)
	mine, other := client(t, url), client(t, url)
	db := pg.DB(t, plain)
	must.Get(db.Exec("CREATE TABLE orders AS SELECT generate_series(1, 1000) AS id"))(t)
	build := func() (fastest time.Duration) {
		fastest = time.Hour
		for range 3 {
			began := time.Now()
			must.Get(db.Exec("CREATE INDEX CONCURRENTLY ON orders (id)"))(t)
			fastest = min(fastest, time.Since(began))
		}
		return fastest
	}
	usual := build()
	lease := must.Get(mine.Mutex("migration").Lock(t.Context()))(t)
	next := make(chan error)
	go func() {
		l, err := other.Mutex("migration").Lock(t.Context())
		if err == nil {
			err = l.Unlock(t.Context())
		}
		next <- err
	}()
	// A wait in the server takes ten seconds, and the next index would begin with the next wait.
	if fastest := build(); fastest > 5*time.Second+4*usual {
		t.Errorf("an index takes %v, and %v without a waiter", fastest, usual)
	}
	expect.OK(t, lease.Unlock(t.Context()))
	expect.OK(t, <-next)
}

// client opens a client for the duration of the test.
func client(t testing.TB, rawURL string) *distlock.Client {
	t.Helper()
	c := must.Get(distlock.New(open(t, rawURL), &distlock.Options{TTL: 30 * time.Second}))(t)
	t.Cleanup(func() { c.Close() })
	return c
}

// A refused attempt at level Transaction leaves no transaction open.
func TestRefusedAttemptsLeaveNoTransaction(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgres(t)
	plain := pg.Database(t)
	url := with(t, plain, levels["transaction"]...)
	a, b := open(t, url), open(t, url)
	mine := request("lock")
	take(t, a, mine)
	for range 3 {
		held(t, b, request("lock"))
	}
	expect.Be(t, expect.Err(b.Watch(t.Context(), request("lock"))), driver.ErrSkip, "watch")
	if n := pg.Ask(t, "SELECT count(*)::text FROM pg_stat_activity WHERE datname = $1 AND xact_start IS NOT NULL AND query LIKE '%try_advisory%'", databaseOf(t, url)); n != "0" { // the holder has been asked since
		t.Errorf("%s refused attempts have left a transaction", n)
	}
}
