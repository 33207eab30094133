package pglock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
)

// held makes sure that an attempt is refused.
func held(t testing.TB, b driver.Backend, r driver.Request) {
	t.Helper()
	if _, err := b.Acquire(t.Context(), r); !errors.Is(err, driver.ErrHeld) {
		t.Fatalf("%s: %v, want ErrHeld", r.Name, err)
	}
}

func release(t testing.TB, b driver.Backend, r driver.Request) {
	t.Helper()
	if err := b.Release(context.Background(), r.Hold); err != nil {
		t.Fatalf("%s: %v", r.Name, err)
	}
}

// watch arms a watch for the test's time.
func watch(t testing.TB, b *Backend, r driver.Request) driver.Watch {
	t.Helper()
	w, err := b.Watch(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

// ready waits for a signal. The bound is that of a machine with too much to do.
func ready(t testing.TB, w driver.Watch) {
	t.Helper()
	select {
	case <-w.Ready:
	case <-time.After(time.Minute):
		t.Fatal("no signal")
	}
}

// eventually waits until something is so.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never so: %s", what)
		}
	}
}

// sessions counts the connections to a database, those whose last query is like a
// pattern.
func sessions(t testing.TB, pg *testserver.PostgresServer, database, like string) string {
	t.Helper()
	return pg.Ask(t, "SELECT count(*)::text FROM pg_stat_activity WHERE datname = $1 AND query LIKE $2", databaseOf(t, database), like)
}

const listening = "%LISTEN distlock_%"

// A release is heard after the connection that listens was ended, whatever comes first:
// the release or the next connection.
func TestListeningGoesOnWhenItsConnectionIsEnded(t *testing.T) {
	t.Parallel()
	pg, database := testserver.SharedPostgres(t), fresh(t)
	a, b := open(t, database), open(t, database)
	for _, again := range []bool{false, true} {
		mine, theirs := request(fmt.Sprint("lock", again)), request(fmt.Sprint("lock", again))
		take(t, a, mine)
		w := watch(t, b, theirs)
		eventually(t, "b listens", func() bool { return sessions(t, pg, database, listening) == "1" })
		pg.Ask(t, "SELECT pg_terminate_backend(pid)::text FROM pg_stat_activity WHERE query LIKE $1 AND datname = $2", listening, databaseOf(t, database))
		if again {
			eventually(t, "b listens again", func() bool { return sessions(t, pg, database, listening) == "1" })
		}
		release(t, a, mine)
		for {
			ready(t, w)
			if _, err := b.Acquire(t.Context(), theirs); err == nil {
				break
			} else if !errors.Is(err, driver.ErrHeld) {
				t.Fatal(err)
			}
		}
	}
}

// What is held is on the disk, and connections that died while nobody used them are not
// used: nothing is unknown after a crash.
func TestLocksOutliveACrashOfTheServer(t *testing.T) {
	t.Parallel()
	pg := testserver.Postgres(t, testserver.PostgresOptions{})
	url := with(t, pg.Database(t), "create", "true")
	a, b := open(t, url), open(t, url)
	mine, theirs := request("lock"), request("lock")
	g := take(t, a, mine)
	crowd(t, a)
	crowd(t, b)
	w := watch(t, b, theirs)
	pg.Kill()
	pg.Start()
	held(t, b, theirs)
	if err := errors.Join(a.Renew(t.Context(), []driver.Hold{mine.Hold})...); err != nil {
		t.Errorf("first call after the crash: %v", err)
	}
	crowd(t, a)
	release(t, a, mine)
	ready(t, w)
	if next := take(t, b, theirs); next.Fence <= g.Last() {
		t.Errorf("fence %d after %d", next.Fence, g.Last())
	}
}

// crowd has several connections used at once.
func crowd(t testing.TB, b *Backend) {
	t.Helper()
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			r := request(fmt.Sprint("crowd", i))
			if _, err := b.Acquire(t.Context(), r); err != nil {
				t.Errorf("one of many: %v", err)
			} else if err := b.Release(t.Context(), r.Hold); err != nil {
				t.Errorf("one of many: %v", err)
			}
		})
	}
	all.Wait()
}

// Those who wait share one connection of their backend, and give it back.
func TestWaitersShareAConnection(t *testing.T) {
	t.Parallel()
	pg, database := testserver.SharedPostgres(t), fresh(t)
	holder := open(t, database)
	mine := request("lock")
	take(t, holder, mine)
	var watches []driver.Watch
	waiters := []*Backend{open(t, database), open(t, database)}
	for _, b := range waiters {
		for i := range 100 {
			name := "lock"
			if i >= 50 {
				name = fmt.Sprint("other", i) // free: its watch fires at once
			}
			w, err := b.Watch(t.Context(), request(name))
			if err != nil {
				t.Fatal(err)
			}
			watches = append(watches, w)
		}
	}
	eventually(t, "one connection listens for each backend", func() bool { return sessions(t, pg, database, listening) == "2" })
	release(t, holder, mine)
	for _, w := range watches {
		ready(t, w)
		w.Close()
	}
	eventually(t, "nobody listens", func() bool { return sessions(t, pg, database, listening) == "0" })
	if n := waiters[0].database.db.Stats().OpenConnections; n > maxConns {
		t.Errorf("%d connections for 100 waiters", n)
	}
}

// counter counts what a database is asked.
type counter struct{ n atomic.Int64 }

func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.n.Add(1)
	return ctx
}

func (c *counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (c *counter) during(f func()) int64 {
	before := c.n.Load()
	f()
	return c.n.Load() - before
}

func TestStatementsOfEachCall(t *testing.T) {
	t.Parallel()
	config, c := mustConfig(t, testserver.SharedPostgres(t).Database(t)), &counter{}
	config.Tracer = c
	db := stdlib.OpenDB(*config)
	defer db.Close()
	b, err := New(t.Context(), db, &Options{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	mine, theirs := request("lock"), request("lock")
	var holds []driver.Hold
	for i := range 100 {
		r := request(fmt.Sprint("many", i))
		take(t, b, r)
		holds = append(holds, r.Hold)
	}
	for _, call := range []struct {
		what string
		want int64
		f    func()
	}{
		{"the first lock of a name", 3, func() { take(t, b, mine) }},
		{"a refusal", 2, func() { held(t, b, theirs) }},
		{"an unlock", 1, func() { release(t, b, mine) }},
		{"a lock", 1, func() { take(t, b, mine) }},
		{"a renewal of 100", 1, func() {
			if err := errors.Join(b.Renew(t.Context(), holds)...); err != nil {
				t.Fatal(err)
			}
		}},
		{"a look", 1, func() {
			if _, err := b.Inspect(t.Context(), "lock"); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		if n := c.during(call.f); n != call.want {
			t.Errorf("%s: %d statements, want %d", call.what, n, call.want)
		}
	}
}

// A release notifies nobody if nobody waits, and at once if somebody does.
func TestNotifiesOnlyWhoWaits(t *testing.T) {
	t.Parallel()
	pg, database := testserver.SharedPostgres(t), fresh(t)
	a, b := open(t, database), open(t, database)
	conn, err := pgx.Connect(t.Context(), strings.Replace(database, "create=true&", "", 1))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	found, err := a.database.findTable(t.Context(), rowTable("distlock_locks"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "LISTEN "+found.channel()); err != nil {
		t.Fatal(err)
	}
	mine := request("lock")
	take(t, a, mine)
	release(t, a, mine)
	if _, err := conn.Exec(t.Context(), "NOTIFY "+found.channel()+", 'end'"); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.WaitForNotification(t.Context()); err != nil || n.Payload != "end" {
		t.Errorf("%v, %v: somebody was told of a release that nobody waited for", n, err)
	}
	take(t, a, mine)
	watch(t, b, request("lock"))
	release(t, a, mine)
	if n, err := conn.WaitForNotification(t.Context()); err != nil || n.Payload == "end" {
		t.Errorf("%v, %v: want the release", n, err)
	}
	if n := pg.CountLogged("@" + databaseOf(t, database) + " .*ERROR"); n != 0 {
		t.Errorf("%d errors logged", n)
	}
}

// Timeouts of the user's, which are meant for other work, end neither waiting nor locks.
func TestTimeoutsOfTheSession(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgres(t)
	plain := pg.Database(t)
	database := with(t, plain, "create", "true", "statement_timeout", "2s", "lock_timeout", "100ms", "idle_in_transaction_session_timeout", "1s", "idle_session_timeout", "1s")
	a, b := open(t, database), open(t, database)
	mine, theirs := request("lock"), request("lock")
	take(t, a, mine)
	w := watch(t, b, theirs)
	eventually(t, "the sessions that do not listen are over", func() bool { return sessions(t, pg, plain, listening) == sessions(t, pg, plain, "%") })

	tx, err := pg.DB(t, plain).Begin()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec("SELECT 1 FROM distlock_locks FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	if err := a.Release(t.Context(), mine.Hold); err == nil || errors.Is(err, driver.ErrLost) || driver.Final(err) || sqlState(err) != "55P03" {
		t.Errorf("a row that somebody else keeps locked: %v", err)
	}
	tx.Rollback()
	release(t, a, mine)
	ready(t, w)
	take(t, b, theirs)
}

// Whatever isolation sessions have, what they do to each other is not the user's to see.
func TestIsolationLevels(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"repeatable read", "serializable"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			database := with(t, hasty(t), "create", "true", "default_transaction_isolation", level)
			backends := []*Backend{open(t, database), open(t, database)}
			var all sync.WaitGroup
			for i := range 12 {
				all.Go(func() { contend(t, backends[i%2], i) })
			}
			all.Wait()
		})
	}
}

func contend(t *testing.T, b *Backend, i int) {
	r := request("one")
	if i%3 == 0 {
		r = request("some")
		r.Mode, r.Limit = driver.Counted, 2
	}
	for range 20 {
		r.Owner = driver.NewOwner()
		_, err := b.Acquire(t.Context(), r)
		if err == nil {
			err = b.Release(t.Context(), r.Hold)
		}
		if err != nil && !errors.Is(err, driver.ErrHeld) {
			t.Error(err)
		}
	}
}

func TestConflictsAreMetWithRetries(t *testing.T) {
	for _, c := range []string{conflict, deadlock, idleTooLong} {
		n := 0
		err := retry(t.Context(), func() error {
			if n++; n < 3 {
				return fmt.Errorf("as wrapped: %w", &pgconn.PgError{Code: c})
			}
			return nil
		})
		if err != nil || n != 3 {
			t.Errorf("%s: %v after %d", c, err, n)
		}
	}
	n := 0
	err := retry(t.Context(), func() error { n++; return &pgconn.PgError{Code: shuttingDown} })
	if n != 1 || err == nil {
		t.Errorf("what may have been done was done %d times: %v", n, err)
	}
}

// With one connection nobody listens, or nobody could do anything else.
func TestAPoolOfOne(t *testing.T) {
	t.Parallel()
	db := testserver.SharedPostgres(t).DB(t, testserver.SharedPostgres(t).Database(t))
	db.SetMaxOpenConns(1)
	b, err := New(t.Context(), db, &Options{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	mine, theirs := request("lock"), request("lock")
	take(t, b, mine)
	w, err := b.Watch(t.Context(), theirs)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	release(t, b, mine)
	ready(t, w)
	take(t, b, theirs)
}

// A table that is dropped under a backend is a fact, and no password is told.
func TestATableThatIsGone(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgres(t)
	plain := pg.Database(t)
	b := open(t, with(t, plain, "create", "true"))
	take(t, b, request("lock"))
	if _, err := pg.DB(t, plain).Exec("DROP TABLE distlock_locks"); err != nil {
		t.Fatal(err)
	}
	_, err := b.Acquire(t.Context(), request("lock"))
	wantRefusal(t, err, "table")
}
