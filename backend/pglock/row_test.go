package pglock

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/engine"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

var (
	release    = locktest.Release
	watch      = locktest.Watch
	eventually = locktest.Eventually
)

// held checks that an attempt is refused.
func held(t testing.TB, b driver.Backend, r driver.Request) {
	t.Helper()
	must.Be(t, expect.Err(b.Acquire(t.Context(), r)), driver.ErrHeld, r.Name)
}

// ready waits until a watch signals.
func ready(t testing.TB, w driver.Watch) {
	t.Helper()
	locktest.Signalled(t, w, "the lock was released")
}

// sessions counts the connections to a database whose last query matches a pattern.
func sessions(t testing.TB, pg *testserver.PostgresServer, database, like string) string {
	t.Helper()
	return pg.Ask(t, "SELECT count(*)::text FROM pg_stat_activity WHERE datname = $1 AND query LIKE $2", databaseOf(t, database), like)
}

const listening = "%LISTEN distlock_%"

// A release notifies waiters even if the listening connection was closed, whether the release comes
// before or after the reconnect.
func TestListeningGoesOnWhenItsConnectionIsEnded(t *testing.T) {
	t.Parallel()
	pg, database := testserver.SharedPostgres(t), fresh(t)
	a, b := open(t, database), open(t, database)
	for _, again := range []bool{false, true} {
		mine, theirs := request(fmt.Sprint("lock", again)), request(fmt.Sprint("lock", again))
		take(t, a, mine)
		theirs.Queue = true
		held(t, b, theirs)
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

// In use a refused login is no fact about a lock: the release is retried, and succeeds when the password is valid again.
func TestLoginsThatAreRefusedInUse(t *testing.T) {
	t.Parallel()
	pg, database := testserver.SharedPostgres(t), fresh(t)
	open(t, database)
	url := pg.User(t, database, "s3cret", "SELECT, INSERT, UPDATE ON distlock_locks")
	b, r := open(t, url), request("lock")
	take(t, b, r)
	user := mustConfig(t, url).User
	pg.Exec(t, "ALTER ROLE "+user+" PASSWORD 'other'")
	pg.Ask(t, "SELECT count(pg_terminate_backend(pid))::text FROM pg_stat_activity WHERE usename = $1", user)
	eventually(t, "the login is refused", func() bool {
		err := b.Release(t.Context(), r.Hold)
		if err == nil || driver.Final(err) || errors.Is(err, driver.ErrLost) {
			t.Fatalf("%v; want an unknown outcome", err)
		}
		return strings.Contains(err.Error(), causes[badPassword])
	})
	pg.Exec(t, "ALTER ROLE "+user+" PASSWORD 's3cret'")
	release(t, b, r)
	pooler := errors.New("FATAL: password authentication failed (SQLSTATE 08P01)")
	if !driver.Final(explainOpen(pooler)) || driver.Final(explain(pooler)) {
		t.Error("PgBouncer's refusal is not treated like PostgreSQL's")
	}
}

// Locks are on the disk, and dead idle connections are not used. No outcome is unknown after a crash.
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
	expect.OK(t, errors.Join(a.Renew(t.Context(), []driver.Hold{mine.Hold})...), "first call after the crash")
	crowd(t, a)
	release(t, a, mine)
	ready(t, w)
	if next := take(t, b, theirs); next.Fence <= g.Last() {
		t.Errorf("fence %d after %d", next.Fence, g.Last())
	}
}

// A crash takes a release back, and the lock is held until its TTL ends. The row's rev does not return: whoever has read the
// release writes nothing over what came instead.
func TestCrashTakesAReleaseBack(t *testing.T) {
	t.Parallel()
	pg := testserver.Postgres(t, testserver.PostgresOptions{Settings: []string{"wal_writer_delay=10s"}})
	url := with(t, pg.Database(t), "create", "true")
	b := open(t, url)
	db := pg.DB(t, plainOf(t, url))
	rev := func(name string) (rev int64) {
		must.OK(t, db.QueryRow("SELECT version FROM distlock_locks WHERE name = $1", name).Scan(&rev))
		return rev
	}
	for n := 0; ; n++ {
		r := request(fmt.Sprint("lock", n))
		take(t, b, r)
		release(t, b, r)
		released := rev(r.Name)
		pg.Kill()
		pg.Start()
		err := errors.Join(b.Renew(t.Context(), []driver.Hold{r.Hold})...)
		if errors.Is(err, driver.ErrLost) && n < 10 {
			continue // the release has reached the disk
		}
		must.OK(t, err, "the release is not taken back")
		held(t, b, request(r.Name))
		if got := rev(r.Name); got == released {
			t.Errorf("rev %d is that of the release, and now that of a renewal", got)
		}
		return
	}
}

// crowd uses several connections at once. Its names are new, since a crash may have taken releases back.
func crowd(t testing.TB, b *Backend) {
	t.Helper()
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			r := request(driver.NewOwner())
			if _, err := b.Acquire(t.Context(), r); err != nil {
				t.Errorf("concurrent call: %v", err)
			} else if err := b.Release(t.Context(), r.Hold); err != nil {
				t.Errorf("concurrent call: %v", err)
			}
		})
	}
	all.Wait()
}

// The waiters of a backend share one connection, which is closed afterwards. Those without a place poll.
func TestWaitersShareAConnection(t *testing.T) {
	t.Parallel()
	pg, database := testserver.SharedPostgres(t), fresh(t)
	holder := open(t, database)
	mine, other := request("lock"), request("other")
	take(t, holder, mine)
	take(t, holder, other)
	var watches, placed []driver.Watch
	waiters := []*Backend{open(t, database), open(t, database)}
	for _, b := range waiters {
		for range 50 {
			r := queued(request("other"))
			held(t, b, r)
			placed = append(placed, must.Get(b.Watch(t.Context(), r))(t))
		}
	}
	eventually(t, "one connection listens for each backend", func() bool { return sessions(t, pg, database, listening) == "2" })
	for _, b := range waiters {
		for i := range 100 {
			name := "lock"
			if i >= 50 {
				name = fmt.Sprint("other", i) // free: its watch fires at once
			}
			watches = append(watches, must.Get(b.Watch(t.Context(), request(name)))(t))
		}
	}
	release(t, holder, mine)
	for _, w := range watches {
		ready(t, w)
		w.Close()
	}
	release(t, holder, other)
	ready(t, placed[0])
	for _, w := range placed {
		w.Close()
	}
	eventually(t, "no connection listens", func() bool { return sessions(t, pg, database, listening) == "0" })
	if n := waiters[0].database.db.Stats().OpenConnections; n > maxConns {
		t.Errorf("%d connections for 100 waiters", n)
	}
}

// A process that waits has one connection: its statements run on the one that listens.
func TestAProcessThatWaitsHasOneConnection(t *testing.T) {
	t.Parallel()
	const processes = 12
	pg, database := testserver.SharedPostgres(t), fresh(t)
	holder, mine := open(t, database), request("lock")
	take(t, holder, mine)
	var waiting, all sync.WaitGroup
	for range processes {
		b, r := open(t, database), request("lock")
		r.Queue = true
		waiting.Add(1)
		all.Go(func() {
			held(t, b, r)
			w := watch(t, b, r)
			err := expect.Err(b.Acquire(t.Context(), r))
			for waiting.Done(); err != nil; err = expect.Err(b.Acquire(t.Context(), r)) {
				expect.Be(t, err, driver.ErrHeld)
				<-w.Ready
			}
			release(t, b, r)
		})
	}
	few := func(when string) {
		n := must.Get(strconv.Atoi(pg.Ask(t, "SELECT count(*)::text FROM pg_stat_activity WHERE datname = $1", databaseOf(t, database))))(t)
		if most := 1 + processes + processes/4; n > most { // a statement may meet a check of the connection
			t.Errorf("%d connections %s, want %d at most", n, when, most)
		}
	}
	waiting.Wait()
	few("while all wait")
	release(t, holder, mine)
	all.Wait()
	few("after all have held")
}

// A process that waits is served although the server lets in no other connection of its user.
func TestAProcessThatWaitsNeedsNoOtherConnection(t *testing.T) {
	t.Parallel()
	pg, database := testserver.SharedPostgres(t), fresh(t)
	holder, mine := open(t, database), request("lock")
	take(t, holder, mine)
	user := pg.User(t, database, "s3cret", "SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA public")
	b, r := open(t, user), queued(request("lock"))
	held(t, b, r)
	w := watch(t, b, r)
	pg.Exec(t, "ALTER ROLE "+must.Get(url.Parse(user))(t).User.Username()+" CONNECTION LIMIT 1")
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for range 20 {
				other := request(fmt.Sprint("other", i))
				take(t, b, other)
				release(t, b, other)
			}
		})
	}
	all.Wait()
	release(t, holder, mine)
	ready(t, w)
	take(t, b, r)
}

// counter counts the statements that a database executes.
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
	b := must.Get(New(t.Context(), db, &Options{Create: true}))(t)
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
		{"the first lock of a name", 1, func() { take(t, b, mine) }},
		{"a refusal", 1, func() { held(t, b, theirs) }},
		{"an unlock", 1, func() { release(t, b, mine) }},
		{"a lock", 1, func() { take(t, b, mine) }},
		{"a renewal of 100", 1, func() {
			must.OK(t, errors.Join(b.Renew(t.Context(), holds)...))
		}},
		{"a read", 1, func() {
			must.Get(b.Inspect(t.Context(), "lock"))(t)
		}},
	} {
		if n := c.during(call.f); n != call.want {
			t.Errorf("%s: %d statements, want %d", call.what, n, call.want)
		}
	}
}

// A release notifies only the clients of the places that it lets in. Everyone may listen, so it names a waiter by the end of its
// Owner.
func TestNotifiesOnlyWhoIsLetIn(t *testing.T) {
	t.Parallel()
	pg, database := testserver.SharedPostgres(t), fresh(t)
	a, b := open(t, database), open(t, database)
	conn := must.Get(pgx.Connect(t.Context(), strings.Replace(database, "create=true&", "", 1)))(t)
	defer conn.Close(context.Background())
	found := must.Get(a.database.findTable(t.Context(), rowTable("distlock_locks")))(t)
	mine, first, second := request("lock"), queued(request("lock")), queued(request("lock"))
	take(t, a, mine)
	held(t, b, first)
	held(t, a, second)
	own := found.channel() + "_" + addressOf(t, b)
	must.Get(conn.Exec(t.Context(), "LISTEN "+own))(t)
	release(t, a, mine)
	if n, err := conn.WaitForNotification(t.Context()); err != nil || n.Channel != own || n.Payload != first.Owner[len(first.Owner)-8:] {
		t.Errorf("%v, %v: want one to %s with the end of %s", n, err, own, first.Owner)
	}
	take(t, b, first)
	release(t, b, first) // whose successor waits elsewhere
	take(t, a, second)
	release(t, a, second)
	must.Get(conn.Exec(t.Context(), "NOTIFY "+own+", 'end'"))(t)
	if n, err := conn.WaitForNotification(t.Context()); err != nil || n.Payload != "end" {
		t.Errorf("%v, %v: want nothing more", n, err)
	}
	if n := pg.CountLogged("@" + databaseOf(t, database) + " .*ERROR"); n != 0 {
		t.Errorf("%d errors logged", n)
	}
}

func queued(r driver.Request) driver.Request {
	r.Queue = true
	return r
}

// addressOf returns the address of the first place in the table.
func addressOf(t *testing.T, b *Backend) (address string) {
	t.Helper()
	must.OK(t, b.database.queryRow(t.Context(), `SELECT substring(claims FROM ' p[0-9]+ [0-9]+ [0-9]+ [0-9]+ ([0-9a-f]+) ') FROM distlock_locks WHERE name = 'lock'`).Scan(&address))
	return address
}

// Permits that are released one after the other are announced to as many places, before the first of them has come.
func TestNotifiesAsManyAsPermits(t *testing.T) {
	t.Parallel()
	database := fresh(t)
	b, other := open(t, database), open(t, database)
	conn := must.Get(pgx.Connect(t.Context(), strings.Replace(database, "create=true&", "", 1)))(t)
	defer conn.Close(context.Background())
	var all []driver.Request
	for i := range 5 {
		r := request("lock")
		r.Mode, r.Limit, r.Queue = driver.Counted, 3, true
		all = append(all, r)
		if _, err := b.Acquire(t.Context(), r); errors.Is(err, driver.ErrHeld) != (i >= 3) {
			t.Fatal(i, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), locktest.Patience)
	defer cancel()
	watch(t, b, all[3])
	found := must.Get(b.database.findTable(t.Context(), rowTable("distlock_locks")))(t)
	must.Get(conn.Exec(t.Context(), "LISTEN "+found.channel()+"_"+addressOf(t, b)))(t)
	for n := range 2 {
		release(t, other, all[n])
		told := map[string]bool{}
		for range n + 1 {
			told[must.Get(conn.WaitForNotification(ctx))(t).Payload] = true
		}
		for _, r := range all[3 : 4+n] {
			if !told[r.Owner[len(r.Owner)-8:]] {
				t.Errorf("after %d releases %v: want %s", n+1, told, r.Owner)
			}
		}
	}
}

// Session timeouts of the user's own pool that are meant for other work end neither waits nor locks.
func TestTimeoutsOfTheSession(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgres(t)
	plain := pg.Database(t)
	database := with(t, plain, "statement_timeout", "4s", "lock_timeout", "100ms", "idle_in_transaction_session_timeout", "4s", "idle_session_timeout", "5s")
	a, b := onHandle(t, database), onHandle(t, database)
	mine, theirs := request("lock"), request("lock")
	take(t, a, mine)
	theirs.Queue = true
	held(t, b, theirs)
	w := watch(t, b, theirs)
	eventually(t, "the sessions that do not listen are over", func() bool { return sessions(t, pg, plain, listening) == sessions(t, pg, plain, "%") })

	tx := must.Get(pg.DB(t, plain).Begin())(t)
	must.Get(tx.Exec("SELECT 1 FROM distlock_locks FOR UPDATE"))(t)
	if err := a.Release(t.Context(), mine.Hold); err == nil || errors.Is(err, driver.ErrLost) || driver.Final(err) || sqlState(err) != "55P03" {
		t.Errorf("a row that another transaction keeps locked: %v", err)
	}
	tx.Rollback()
	release(t, a, mine)
	ready(t, w)
	take(t, b, theirs)
}

// Sessions of all isolation levels work, and serialization failures stay hidden from the user.
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
		if err != nil && !errors.Is(err, driver.ErrHeld) && sqlState(err) != lockTimeout { // on a slow machine
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
		t.Errorf("a call of unknown outcome was sent %d times: %v", n, err)
	}
}

// A pool of one connection does not listen. Listening would block all other calls.
func TestAPoolOfOne(t *testing.T) {
	t.Parallel()
	db := testserver.SharedPostgres(t).DB(t, testserver.SharedPostgres(t).Database(t))
	db.SetMaxOpenConns(1)
	b := must.Get(New(t.Context(), db, &Options{Create: true}))(t)
	defer b.Close()
	mine, theirs := request("lock"), request("lock")
	take(t, b, mine)
	w := must.Get(b.Watch(t.Context(), theirs))(t)
	defer w.Close()
	release(t, b, mine)
	ready(t, w)
	take(t, b, theirs)
}

// A table that was dropped may come back: until then outcomes are unknown.
func TestATableThatIsGone(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgres(t)
	plain := pg.Database(t)
	b := open(t, with(t, plain, "create", "true"))
	take(t, b, request("lock"))
	must.Get(pg.DB(t, plain).Exec("DROP TABLE distlock_locks"))(t)
	_, err := b.Acquire(t.Context(), request("lock"))
	if err == nil || driver.Final(err) || !strings.Contains(err.Error(), "the table is gone") {
		t.Errorf("%v, want an unknown outcome", err)
	}
	open(t, with(t, plain, "create", "true"))
	take(t, b, request("lock"))
}

// A release succeeds while PostgreSQL's notification queue is full. A listening session that keeps a
// transaction open fills it.
func TestLongReleasesWhileNobodyCanBeNotified(t *testing.T) {
	t.Parallel()
	pg := testserver.Postgres(t, testserver.PostgresOptions{Version: "18", Settings: []string{"max_notify_queue_pages=64"}})
	plain := pg.Database(t)
	a, b := open(t, with(t, plain, "create", "true")), open(t, plain)
	mine, theirs, permit := request("lock"), queued(request("lock")), queued(request("permit"))
	permit.Mode, permit.Limit = driver.Counted, 1
	other := permit
	other.Owner = driver.NewOwner()
	take(t, a, mine)
	take(t, a, permit)
	held(t, b, theirs)
	held(t, b, other)
	fillQueue(t, plain)
	release(t, a, mine)
	take(t, b, theirs)
	release(t, a, permit)
	take(t, b, other)
}

// fillQueue makes notifications fail for the duration of the test.
func fillQueue(t *testing.T, url string) {
	t.Helper()
	conn := must.Get(pgx.Connect(t.Context(), url))(t)
	t.Cleanup(func() { conn.Close(context.Background()) })
	for _, query := range []string{"LISTEN nothing", "BEGIN; SELECT 1"} {
		must.Get(conn.Exec(t.Context(), query))(t)
	}
	db := testserver.SharedPostgres(t).DB(t, url)
	for range 1000 {
		if _, err := db.Exec("SELECT pg_notify('something', $1)", strings.Repeat("x", 7900)); err != nil {
			if sqlState(err) != queueFull {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatal("the queue never fills")
}

// A replica's answers are stale. They do not prove that a lock is lost or held.
func TestAnswersOfAReplicaAreNoFacts(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgres(t)
	plain := pg.Database(t)
	b := open(t, with(t, plain, "create", "true", "search_path", "fake, public, pg_catalog"))
	mine := request("lock")
	mine.Mode = driver.Write
	take(t, b, mine)
	must.Get(pg.DB(t, plain).Exec("CREATE SCHEMA fake; CREATE FUNCTION fake.pg_is_in_recovery() RETURNS boolean LANGUAGE sql AS 'SELECT true'"))(t)
	stranger := request("lock")
	stranger.Mode = driver.Write
	for what, err := range map[string]error{
		"renew":   b.Renew(t.Context(), []driver.Hold{stranger.Hold})[0],
		"release": b.Release(t.Context(), stranger.Hold),
	} {
		if err == nil || errors.Is(err, driver.ErrLost) || driver.Final(err) || !strings.Contains(err.Error(), "replica") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// Old databases may set bytea_output=escape for old programs.
func TestEscapedBytes(t *testing.T) {
	t.Parallel()
	everything(t, open(t, with(t, fresh(t), "bytea_output", "escape", "default_query_exec_mode", "exec")))
}

// A listening connection without waiters is closed, even while notifications for other locks arrive.
func TestListeningEndsWhileOthersAreTold(t *testing.T) {
	t.Parallel()
	pg, database := testserver.SharedPostgres(t), fresh(t)
	b := open(t, database)
	w := must.Get(b.Watch(t.Context(), queued(request("lock"))))(t)
	eventually(t, "b listens", func() bool { return sessions(t, pg, database, listening) == "1" })
	found := must.Get(b.database.findTable(t.Context(), rowTable("distlock_locks")))(t)
	w.Close()
	db := pg.DB(t, strings.Replace(database, "create=true&", "", 1))
	eventually(t, "b listens no more", func() bool {
		time.Sleep(50 * time.Millisecond)
		must.Get(db.Exec("NOTIFY " + found.channel()))(t)
		return sessions(t, pg, database, "%LISTEN%") == "0" && sessions(t, pg, database, "%anybody%") == "0"
	})
}

// Different tables in one database are different coordinators.
func TestNamesOfTables(t *testing.T) {
	t.Parallel()
	database := fresh(t)
	one, other := open(t, database).Caps().Name, open(t, with(t, database, "table", "others")).Caps().Name
	if same := open(t, with(t, database, "table", "public.distlock_locks")).Caps().Name; one == other || one != same {
		t.Errorf("%s, %s, %s: want the first and the last to be the same", one, other, same)
	}
}

// A prefix is a byte string. It need not end at a character boundary.
func TestPrefixes(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"cache_statement", "exec"} {
		b := open(t, with(t, fresh(t), "default_query_exec_mode", mode))
		for _, name := range []string{"a", "a%", "b", "ä", "ö", "日"} {
			take(t, b, request(name))
		}
		for prefix, want := range map[string]string{"": "a a% b ä ö 日", "a": "a a%", "a%": "a%", "\xc3": "ä ö", "\xe6\x97": "日", "\xff": "", "a\x00": ""} {
			var got []string
			err := b.List(t.Context(), prefix, func(name string) bool { got = append(got, name); return true })
			if err != nil || strings.Join(got, " ") != want {
				t.Errorf("%q: %q, %v; want %s", prefix, got, err, want)
			}
		}
	}
}

// A delayed attempt must not shorten the hold if a later call of the same owner has already succeeded.
func TestAttemptThatIsOvertaken(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgres(t)
	plain := pg.Database(t)
	b := open(t, with(t, plain, "create", "true"))
	mine := request("overtaken")
	take(t, b, mine)
	tx := lockRow(t, pg.DB(t, plain), mine.Name)
	done := make(chan error, 1)
	go func() {
		_, err := b.Acquire(context.Background(), mine)
		for sqlState(err) == lockTimeout { // on a slow machine
			_, err = b.Acquire(context.Background(), mine)
		}
		done <- err
	}()
	eventually(t, "it waits for the row", func() bool {
		return pg.Ask(t, "SELECT count(*)::text FROM pg_stat_activity WHERE datname = $1 AND wait_event_type = 'Lock'", databaseOf(t, plain)) == "1"
	})
	var later, until int64
	err := tx.QueryRow(`UPDATE distlock_locks SET version = version + 1, until = until + 3600000000, claims = replace(claims, ' ' || until || ' ', ' ' || until + 3600000000 || ' ')
		WHERE name = $1 RETURNING until`, mine.Name).Scan(&later)
	must.OK(t, errors.Join(err, tx.Commit(), <-done))
	err = b.database.queryRow(t.Context(), "SELECT until FROM distlock_locks WHERE name = '"+mine.Name+"'").Scan(&until)
	if err != nil || until < later {
		t.Errorf("the hold ends %d µs too early, %v", later-until, err)
	}
}

// An attempt that the server rolls back at its commit, after it has answered with the row, takes nothing.
func TestTakeThatIsRolledBack(t *testing.T) {
	t.Parallel()
	db := sql.OpenDB(&abortingConnector{})
	defer db.Close()
	s := &rowStore{database: &database{db: db}, sql: &rowStatements{}}
	if out := s.swap(t.Context(), &engine.Change{Name: "x"}); out.Done || out.Err != nil {
		t.Errorf("%+v", out)
	}
}

// abortingConnector has a server that answers the first statement with a row and then aborts it. Later ones find
// none.
type abortingConnector struct{ statements int }

func (c *abortingConnector) Connect(context.Context) (sqldriver.Conn, error) {
	return abortingConn{c: c}, nil
}
func (c *abortingConnector) Driver() sqldriver.Driver { return nil }

type abortingConn struct {
	sqldriver.Conn
	c *abortingConnector
}

func (abortingConn) Close() error { return nil }

func (c abortingConn) QueryContext(context.Context, string, []sqldriver.NamedValue) (sqldriver.Rows, error) {
	c.c.statements++
	return &abortedRows{found: c.c.statements == 1}, nil
}

type abortedRows struct{ found, read bool }

func (r *abortedRows) Columns() []string { return []string{"told"} }

func (r *abortedRows) Next(row []sqldriver.Value) error {
	if !r.found || r.read {
		return io.EOF
	}
	r.read, row[0] = true, "7 7 "
	return nil
}

func (r *abortedRows) Close() error {
	if r.found {
		return &pgconn.PgError{Code: conflict}
	}
	return nil
}

// The statements that decide by the text of a row answer as package claims does.
func TestRowSameAsClaims(t *testing.T) {
	t.Parallel()
	b := open(t, fresh(t))
	locktest.SameAsClaims(t, b, 100, func(name, owner string) {
		must.Get(b.database.db.Exec(`UPDATE distlock_locks SET version = version + 1,
			claims = regexp_replace(claims, '(' || $2::text || ' [hp][0-9]+ [0-9]+) [0-9]+', '\1 1', 'g') WHERE name = $1`, name, owner))(t)
	})
}

// An owner whose hold has ended, and whose number is still the last one, stands in line behind others.
func TestRowQueuesAfterItsHoldHasEnded(t *testing.T) {
	t.Parallel()
	b := open(t, fresh(t))
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Write} {
		mine, theirs := request(mode.String()), request(mode.String())
		mine.Mode, mine.Queue, theirs.Mode, theirs.Queue = mode, true, mode, true
		take(t, b, mine)
		held(t, b, theirs)
		must.Get(b.database.db.Exec(`UPDATE distlock_locks SET version = version + 1, claims = regexp_replace(claims, ' (h[0-9]+ [0-9]+) [0-9]+', ' \1 1')`))(t) // its end
		held(t, b, mine)
		take(t, b, theirs)
	}
}
