package pglock

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/sqlrow"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A release is one also while PostgreSQL has no room for what it is to tell: some session
// that listens keeps a transaction open, and its queue is full.
func TestLongReleasesWhileNobodyCanBeNotified(t *testing.T) {
	t.Parallel()
	pg := testserver.Postgres(t, testserver.PostgresOptions{Version: "18", Settings: []string{"max_notify_queue_pages=64"}})
	plain := pg.Database(t)
	a := open(t, with(t, plain, "create", "true"))
	mine, theirs, permit := request("lock"), request("lock"), request("permit")
	permit.Mode, permit.Limit = driver.Counted, 1
	other := permit
	other.Owner = driver.NewOwner()
	take(t, a, mine)
	take(t, a, permit)
	watch(t, a, theirs)
	watch(t, a, other)
	fillQueue(t, plain)
	release(t, a, mine)
	take(t, a, theirs)
	release(t, a, permit)
	take(t, a, other)
}

// fillQueue makes notifications fail for the test's time.
func fillQueue(t *testing.T, url string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	for _, query := range []string{"LISTEN nothing", "BEGIN; SELECT 1"} {
		if _, err := conn.Exec(t.Context(), query); err != nil {
			t.Fatal(err)
		}
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
	t.Fatal("the queue has room for ever")
}

// What a replica says is old: it is no fact that a lock is lost, or held.
func TestAnswersOfAReplicaAreNoFacts(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgres(t)
	plain := pg.Database(t)
	b := open(t, with(t, plain, "create", "true", "search_path", "fake, public, pg_catalog"))
	mine := request("lock")
	mine.Mode = driver.Write
	take(t, b, mine)
	if _, err := pg.DB(t, plain).Exec("CREATE SCHEMA fake; CREATE FUNCTION fake.pg_is_in_recovery() RETURNS boolean LANGUAGE sql AS 'SELECT true'"); err != nil {
		t.Fatal(err)
	}
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

// Old databases have bytea_output=escape for programs that know nothing else.
func TestEscapedBytes(t *testing.T) {
	t.Parallel()
	everything(t, open(t, with(t, fresh(t), "bytea_output", "escape", "default_query_exec_mode", "exec")))
}

// A connection that listens for nobody is given back, however much it is told of others.
func TestListeningEndsWhileOthersAreTold(t *testing.T) {
	t.Parallel()
	pg, database := testserver.SharedPostgres(t), fresh(t)
	b := open(t, database)
	w, err := b.Watch(t.Context(), request("lock"))
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "b listens", func() bool { return sessions(t, pg, database, listening) == "1" })
	found, err := b.database.findTable(t.Context(), rowTable("distlock_locks"))
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
	db := pg.DB(t, strings.Replace(database, "create=true&", "", 1))
	eventually(t, "b listens no more", func() bool {
		time.Sleep(50 * time.Millisecond)
		if _, err := db.Exec("NOTIFY " + found.channel()); err != nil {
			t.Fatal(err)
		}
		return sessions(t, pg, database, "%LISTEN%") == "0" && sessions(t, pg, database, "%anybody%") == "0"
	})
}

// Anybody may notify anything.
func TestOddNotifications(t *testing.T) {
	var heard odd
	b := newReleaseListener(nil, "", &heard)
	for _, payload := range []string{"", "x", "abc", strings.Repeat("ab", 31), strings.Repeat("ab", 33), strings.Repeat("ab", 4000), strings.Repeat("g", 64)} {
		b.wake(&pgconn.Notification{Payload: payload})
	}
	if b.wake(&pgconn.Notification{Payload: strings.Repeat("ab", 32)}); heard != 1 {
		t.Errorf("%d locks were woken, want 1", heard)
	}
}

type odd int

func (o *odd) Wake(sqlrow.Key) { *o++ }
func (o *odd) WakeAll()        {}

// Tables of one database are different coordinators.
func TestNamesOfTables(t *testing.T) {
	t.Parallel()
	database := fresh(t)
	one, other := open(t, database).Caps().Name, open(t, with(t, database, "table", "others")).Caps().Name
	if same := open(t, with(t, database, "table", "public.distlock_locks")).Caps().Name; one == other || one != same {
		t.Errorf("%s, %s, %s: want the first and the last to be the same", one, other, same)
	}
}

// What can't be kept is refused for good.
func TestLimitsOfTheTable(t *testing.T) {
	t.Parallel()
	if math.MaxInt == math.MaxInt32 {
		return
	}
	b := open(t, fresh(t))
	permit := request("permits")
	permit.Mode, permit.Limit = driver.Counted, math.MaxInt
	_, err := b.Acquire(t.Context(), permit)
	wantRefusal(t, err, "limit")
	permit.Limit = math.MaxInt32
	take(t, b, permit)
}

// A prefix is bytes; it need not end where a character does.
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

// An attempt that was overtaken by a later call of the same owner, of which the answer is
// known, must not end the hold sooner.
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
		for sqlState(err) == lockTimeout { // on a machine that is slow
			_, err = b.Acquire(context.Background(), mine)
		}
		done <- err
	}()
	eventually(t, "it waits for the row", func() bool {
		return pg.Ask(t, "SELECT count(*)::text FROM pg_stat_activity WHERE datname = $1 AND wait_event_type = 'Lock'", databaseOf(t, plain)) == "1"
	})
	var later, until int64
	err := tx.QueryRow("UPDATE distlock_locks SET until = until + 3600000000 WHERE name = $1 RETURNING until", mine.Name).Scan(&later)
	if err := errors.Join(err, tx.Commit(), <-done); err != nil {
		t.Fatal(err)
	}
	err = b.database.queryRow(t.Context(), "SELECT until FROM distlock_locks WHERE name = '"+mine.Name+"'").Scan(&until)
	if err != nil || until < later {
		t.Errorf("the hold ends %d µs too early, %v", later-until, err)
	}
}
