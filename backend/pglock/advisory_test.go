package pglock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/connlock"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// A cancelled wait leaves nothing on the server: it leaves the queue, and does not keep a lock granted
// at that moment.
func TestAdvisoryWaitersLeaveNoOrphans(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgres(t)
	url := with(t, hastyAt(t, pg), advisoryParams...)
	a, b := open(t, url), open(t, url)
	mine := request("lock")
	take(t, a, mine)
	w := must.Get(b.Watch(t.Context(), request("lock")))(t)
	eventually(t, "b waits", func() bool { return blocked(t, pg, url) == "1" })
	w.Close()
	if n := blocked(t, pg, url); n != "0" {
		t.Errorf("%s wait after Close", n)
	}
	release(t, a, mine)
	for _, other := range []*Backend{a, b} {
		next := request("lock")
		take(t, other, next)
		release(t, other, next)
	}
}

// PostgreSQL may report that a wait timed out although it granted the lock. Hundreds of waits end at
// the moment of a grant, and none keeps a lock.
func TestAdvisoryWaitsInBulkKeepNothing(t *testing.T) { waitsInBulk(t, 25) }

func TestLongAdvisoryWaitsInBulkKeepNothing(t *testing.T) { waitsInBulk(t, 150) }

func waitsInBulk(t *testing.T, times int) {
	t.Parallel()
	pg := testserver.SharedPostgres(t)
	url := with(t, hastyAt(t, pg), advisoryParams...)
	a, b := open(t, url), open(t, url)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			name, from, to := fmt.Sprint("lock", i%2), a, b
			if i%4 < 2 {
				from, to = b, a
			}
			for range times {
				shortWait(t, from, to, name)
			}
		})
	}
	all.Wait()
	eventually(t, "nothing is held or waited for", func() bool { return lockers(t, pg, url) == "0" })
	for _, name := range []string{"lock0", "lock1"} {
		r := request(name)
		take(t, a, r)
		release(t, a, r)
	}
}

// shortWait holds a lock for a moment if it is free, and otherwise waits about as long elsewhere.
func shortWait(t *testing.T, from, to *Backend, name string) {
	held, wanted := request(name), request(name)
	_, err := from.Acquire(t.Context(), held)
	if err != nil && !errors.Is(err, driver.ErrHeld) {
		t.Errorf("acquire: %v", err)
	}
	w, watching := to.Watch(t.Context(), wanted)
	if watching != nil && !errors.Is(watching, driver.ErrSkip) {
		t.Errorf("watch: %v", watching)
	}
	time.Sleep(time.Duration(rand.IntN(1000)) * time.Microsecond) // so that some come too late
	var both sync.WaitGroup
	if err == nil {
		both.Go(func() {
			if err := from.Release(context.Background(), held.Hold); err != nil {
				t.Errorf("release: %v", err)
			}
		})
	}
	if watching == nil {
		both.Go(func() {
			w.Close()
			if err := to.Release(context.Background(), wanted.Hold); err != nil && !errors.Is(err, driver.ErrLost) {
				t.Errorf("release of a lock that a wait may have taken: %v", err)
			}
		})
	}
	both.Wait()
}

// The server ends the hold of a disconnected client when its TTL ends, and not before. The holder has
// been notified by then.
func TestAdvisoryHolderIsPartitioned(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgres(t)
	url := with(t, hastyAt(t, pg), advisoryParams...)
	net := faultproxy.New(t, pg.Addr())
	a, b := open(t, strings.Replace(url, pg.Addr(), net.Addr(), 1)), open(t, url)
	mine, theirs := brief("lock", 2*time.Second), brief("lock", 2*time.Second)
	lost := make(chan time.Time, 10)
	mine.OnLost = func() { lost <- time.Now() }
	eventually(t, "a has the lock", func() bool { // a busy machine may need longer than a TTL for the first connection
		_, err := a.Acquire(t.Context(), mine)
		return err == nil
	})
	net.Silence()
	if errs := a.Renew(t.Context(), []driver.Hold{mine.Hold}); errs[0] == nil {
		t.Error("renewed without a network")
	}
	eventually(t, "b has the lock", func() bool {
		_, err := b.Acquire(t.Context(), theirs)
		return err == nil
	})
	had := time.Now()
	within(t, "the hold", func(context.Context) {
		if late := (<-lost).Sub(had); late > 20*time.Second { // it should be notified before, but this process may be slow
			t.Errorf("the holder was notified %v after the next one had the lock", late)
		}
	})
}

// Close returns without a network, while a hold, a wait and a call are in progress.
func TestAdvisoryCloseWithoutANetwork(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgres(t)
	url := with(t, hastyAt(t, pg), advisoryParams...)
	net := faultproxy.New(t, pg.Addr())
	a := must.Get(Open(t.Context(), strings.Replace(url, pg.Addr(), net.Addr(), 1)))(t)
	take(t, a, request("lock"))
	if _, err := a.Watch(t.Context(), request("lock")); err != nil && !errors.Is(err, driver.ErrSkip) {
		t.Fatal(err)
	}
	net.Silence()
	answer := make(chan error, 1)
	other := brief("other", time.Hour) // needs a new connection
	go func() {
		_, err := a.Acquire(context.Background(), other)
		answer <- err
	}()
	eventually(t, "the call is under way", func() bool { return a.database.db.Stats().OpenConnections > 0 })
	within(t, "Close", func(context.Context) { a.Close() })
	within(t, "Acquire", func(context.Context) {
		if err := <-answer; !errors.Is(err, driver.ErrClosed) {
			t.Errorf("Acquire: %v", err)
		}
	})
}

// A user who may read and write the table needs no other right.
func TestAdvisoryNeedsThreeRights(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgres(t)
	url := pg.Database(t)
	must.Get(pg.DB(t, url).ExecContext(t.Context(), Schema(Options{Strategy: Advisory})))(t)
	user := pg.User(t, url, "pw", "SELECT, INSERT, UPDATE ON distlock_fences")
	b := open(t, with(t, user, "strategy", "advisory"))
	r := request("lock")
	take(t, b, r)
	release(t, b, r)
}

// A connection of the user's pool is closed. It is not returned with locks and settings.
func TestAdvisoryLeavesTheUsersPoolClean(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgres(t)
	url := pg.Database(t)
	pool := must.Get(pgxpool.New(t.Context(), with(t, url, "pool_max_conns", "4")))(t)
	t.Cleanup(pool.Close)
	b := must.Get(NewPool(t.Context(), pool, &Options{Strategy: Advisory, Create: true}))(t)
	r := request("lock")
	take(t, b, r)
	must.OK(t, b.Commit(t.Context(), r.Owner, func(*sql.Tx) error { return nil }))
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	wantClean(t, pool)
	eventually(t, "no advisory lock is left", func() bool { return lockers(t, pg, url) == "0" })
}

// wantClean checks all connections of a pool.
func wantClean(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	for _, conn := range pool.AcquireAllIdle(t.Context()) {
		defer conn.Release()
		for _, setting := range []string{"idle_session_timeout", "idle_in_transaction_session_timeout", "client_connection_check_interval"} {
			var value string
			if err := conn.QueryRow(t.Context(), "SELECT setting FROM pg_settings WHERE name = $1", setting).Scan(&value); err != nil || value != "0" {
				t.Errorf("%s is %s, %v", setting, value, err)
			}
		}
	}
}

func TestAdvisoryLeavesAConnectionForOthers(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgres(t)
	b, db := lent(t, pg.Database(t), 3)
	for i, name := range []string{"a", "b", "c"} {
		_, err := b.Acquire(t.Context(), brief(name, 6*time.Second)) // a sixth of that is how long it waits for a connection
		if i < 2 {
			must.OK(t, err)
		} else if !errors.Is(err, driver.ErrUnsent) || !strings.Contains(err.Error(), "limit is 3") {
			t.Errorf("hold %d of a pool of 3: %v", i+1, err)
		}
	}
	if err := db.PingContext(t.Context()); err != nil {
		t.Error(err)
	}
	small := pg.DB(t, pg.Database(t))
	small.SetMaxOpenConns(1)
	_, err := New(t.Context(), small, &Options{Strategy: Advisory, Create: true})
	wantRefusal(t, err, "the pool's limit is 1")
}

// A server that has no connection left says so, and what a lock needs.
func TestAdvisoryWithoutAConnection(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgres(t)
	plain := pg.Database(t)
	admin := with(t, plain, advisoryParams...)
	open(t, admin)
	user := pg.User(t, admin, "pw", "SELECT, INSERT, UPDATE ON distlock_fences")
	pg.Exec(t, "ALTER ROLE "+mustConfig(t, plainOf(t, user)).User+" CONNECTION LIMIT 1")
	b := open(t, user) // has one
	held := request("a")
	take(t, b, held)
	_, err := b.Acquire(t.Context(), request("b"))
	if !errors.Is(err, driver.ErrUnsent) || driver.Final(err) || !strings.Contains(err.Error(), "each lock and each waiter needs one of its own") {
		t.Error(err)
	}
	release(t, b, held)
	take(t, b, request("b"))
}

// A longer lease of a connection is the server's limit on its silence.
func TestLeaseOfAConnection(t *testing.T) {
	t.Parallel()
	b := open(t, with(t, fresh(t), advisoryParams...))
	conn, c := lockConnection(t, b)
	must.OK(t, c.Lease(t.Context(), time.Hour))
	for _, setting := range []string{"idle_session_timeout", "idle_in_transaction_session_timeout"} {
		var got string
		if must.OK(t, conn.QueryRowContext(t.Context(), "SHOW "+setting).Scan(&got)); got != "1h" {
			t.Errorf("%s is %s, want 1h", setting, got)
		}
	}
}

// An attempt that a proxy has sent to another session takes nothing.
func TestSessionsThatAreMixedUp(t *testing.T) {
	t.Parallel()
	b := open(t, with(t, fresh(t), advisoryParams...))
	_, c := lockConnection(t, b)
	c.(*advisoryConn).pid++
	for what, err := range map[string]error{
		"Ping":    c.Ping(t.Context()),
		"TryLock": func() error { _, _, err := c.TryLock(t.Context(), connlock.Lock{Name: "x"}); return err }(),
	} {
		if err == nil || !strings.Contains(err.Error(), "another process of the server") {
			t.Errorf("%s: %v", what, err)
		}
	}
	take(t, b, request("x"))
}

// lockConnection returns a connection as locks have it.
func lockConnection(t *testing.T, b *Backend) (*sql.Conn, connlock.Conn) {
	t.Helper()
	d := newAdvisoryDialect(b.database, &tableInfo{path: "", quoted: "distlock_fences"})
	conn := must.Get(d.db.Conn(t.Context()))(t)
	c := must.Get(d.NewConn(t.Context(), conn, time.Minute))(t)
	t.Cleanup(func() { c.Close() })
	return conn, c
}

// One table is one set of locks, by whatever name it is known.
func TestAdvisoryLocksOfATableWithTwoNames(t *testing.T) {
	t.Parallel()
	url := with(t, fresh(t), "strategy", "advisory")
	take(t, open(t, url), request("x"))
	if _, err := open(t, with(t, url, "table", "public.distlock_fences")).Acquire(t.Context(), request("x")); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("the same table by another name: %v", err)
	}
}
