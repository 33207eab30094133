package pglock

import (
	"context"
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
	url := with(t, hastyAt(t, pg), levels["session"]...)
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
	eachLevel(t, func(t *testing.T, pg *testserver.PostgresServer, url string) {
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
	})
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
	eachLevel(t, func(t *testing.T, pg *testserver.PostgresServer, url string) {
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
	})
}

// Close returns without a network, while a hold, a wait and a call are in progress.
func TestAdvisoryCloseWithoutANetwork(t *testing.T) {
	t.Parallel()
	eachLevel(t, func(t *testing.T, pg *testserver.PostgresServer, url string) {
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
	})
}

// A user who may read and write the table needs no other right. Open leaves no rows behind.
func TestAdvisoryNeedsThreeRights(t *testing.T) {
	t.Parallel()
	for _, level := range []Level{Session, Transaction} {
		pg := testserver.SharedPostgres(t)
		url := pg.Database(t)
		admin := pg.DB(t, url)
		must.Get(admin.ExecContext(t.Context(), Schema(Options{Strategy: Advisory})))(t)
		user := pg.User(t, url, "pw", "SELECT, INSERT, UPDATE ON distlock_fences")
		b := open(t, with(t, user, "strategy", "advisory", "level", string(level)))
		var rows int
		if err := admin.QueryRowContext(t.Context(), "SELECT count(*) FROM distlock_fences").Scan(&rows); err != nil || rows != 0 {
			t.Errorf("%d rows after Open, %v", rows, err)
		}
		r := request("lock")
		take(t, b, r)
		release(t, b, r)
	}
}

// A connection of the user's pool is closed. It is not returned with locks and settings.
func TestAdvisoryLeavesTheUsersPoolClean(t *testing.T) {
	t.Parallel()
	for _, level := range []Level{Session, Transaction} {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			pg := testserver.SharedPostgres(t)
			url := pg.Database(t)
			pool := must.Get(pgxpool.New(t.Context(), with(t, url, "pool_max_conns", "4")))(t)
			t.Cleanup(pool.Close)
			b := must.Get(NewPool(t.Context(), pool, &Options{Strategy: Advisory, Level: level, Create: true}))(t)
			take(t, b, request("lock"))
			if err := b.Close(); err != nil {
				t.Error(err)
			}
			wantClean(t, pool)
			eventually(t, "no advisory lock is left", func() bool { return lockers(t, pg, url) == "0" })
		})
	}
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

// One connection stays free for other calls, such as a release of another owner's hold.
func TestAdvisoryReleaseOfAnothersHoldNeedsOneConnection(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgres(t)
	url := pg.Database(t)
	for _, level := range []Level{Session, Transaction} {
		a, _ := lent(t, url, level, 3)
		b, db := lent(t, url, level, 3)
		theirs, mine := request("theirs"+string(level)), request("mine")
		take(t, a, theirs)
		take(t, b, mine)
		others := must.Get(db.Conn(t.Context()))(t)
		within(t, "Release", func(ctx context.Context) {
			if err := b.Release(ctx, theirs.Hold); err != nil {
				t.Errorf("level %s: %v", level, err)
			}
		})
		for _, err := range a.Renew(t.Context(), []driver.Hold{theirs.Hold}) {
			if !errors.Is(err, driver.ErrLost) {
				t.Errorf("level %s: Renew after Release: %v", level, err)
			}
		}
		release(t, b, mine)
		others.Close()
	}
}

func TestAdvisoryLeavesAConnectionForOthers(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgres(t)
	b, db := lent(t, pg.Database(t), Transaction, 3)
	for i, name := range []string{"a", "b", "c"} {
		r := request(name)
		r.TTL = 6 * time.Second // a sixth of that is how long it waits for a connection
		_, err := b.Acquire(t.Context(), r)
		if (err == nil) != (i < 2) || driver.Final(err) || errors.Is(err, driver.ErrHeld) {
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

// The server's limit on silence outlasts the end of an attempt, which ends a transaction.
func TestLeaseOutlastsAnAttempt(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgres(t)
	for _, level := range []Level{Session, Transaction} {
		t.Run(string(level), func(t *testing.T) { leaseOutlastsAnAttempt(t, pg, level) })
	}
}

func TestLongLeaseOutlastsAnAttemptOnTheOldest(t *testing.T) {
	t.Parallel()
	leaseOutlastsAnAttempt(t, testserver.SharedPostgresVersion(t, "12"), Session)
}

func leaseOutlastsAnAttempt(t *testing.T, pg *testserver.PostgresServer, level Level) {
	b := open(t, with(t, pg.Database(t), "strategy", "advisory", "level", string(level), "create", "true"))
	d := newAdvisoryDialect(b.database, &tableInfo{path: "", quoted: "distlock_fences"})
	held, refused := pinLink(t, d), pinLink(t, d)
	l := connlock.Lock{Name: "lock", Key: d.Key("lock"), Owner: driver.NewOwner(), Probe: true}
	wantTaken(t, held, l, true)
	wantTaken(t, refused, l, false)
	must.OK(t, refused.Lease(t.Context(), time.Hour))
	wantTaken(t, refused, l, false)
	if got := silence(t, refused); got != "1h" {
		t.Errorf("the server ends a connection that is silent for %s, want 1h", got)
	}
}

func pinLink(t *testing.T, d *advisoryDialect) connlock.Conn {
	t.Helper()
	conn := must.Get(d.db.Conn(t.Context()))(t)
	k := must.Get(d.NewConn(t.Context(), conn, time.Minute))(t)
	t.Cleanup(k.Close)
	return k
}

func wantTaken(t *testing.T, k connlock.Conn, l connlock.Lock, want bool) {
	t.Helper()
	if _, ok, err := k.TryLock(t.Context(), l); ok != want || err != nil {
		t.Fatalf("taken: %v, %v", ok, err)
	}
}

// silence returns how long the server lets a connection be silent in a transaction.
func silence(t *testing.T, k connlock.Conn) (d string) {
	t.Helper()
	tx := &connlock.Tx{}
	switch k := k.(type) {
	case *txConn:
		tx = &k.tx
	case *sessionConn:
		tx = &k.tx
	}
	must.OK(t, tx.Querier().QueryRowContext(t.Context(), "SHOW idle_in_transaction_session_timeout").Scan(&d))
	return d
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
