package pglock

import (
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// A migration that builds an index concurrently, under a lock, waits for each older snapshot of its database. Another instance that
// waits for the lock ends its own after a while, and then the index is built.
func TestLongIndexesAreBuiltWhileOthersWait(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgres(t)
	plain := pg.Database(t)
	url := with(t, plain, advisoryParams...)
	mine, other := client(t, url), client(t, url)
	db := pg.DB(t, plain)
	must.Get(db.Exec("CREATE TABLE orders AS SELECT generate_series(1, 1000) AS id"))(t)
	lease := must.Get(mine.Mutex("migration").Lock(t.Context()))(t)
	next := make(chan error)
	go func() {
		l, err := other.Mutex("migration").Lock(t.Context())
		if err == nil {
			err = l.Unlock(t.Context())
		}
		next <- err
	}()
	eventually(t, "the other waits", func() bool { return blocked(t, pg, url) == "1" })
	must.Get(db.Exec("CREATE INDEX CONCURRENTLY ON orders (id)"))(t)
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
