package mysqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// oddSessions are session settings found in programs.
var oddSessions = map[string]func(*mysql.Config){
	"interpolated":      func(c *mysql.Config) { c.InterpolateParams = true },
	"found rows":        func(c *mysql.Config) { c.ClientFoundRows = true },
	"parsed times":      func(c *mysql.Config) { c.ParseTime = true },
	"ANSI":              session("sql_mode", "'ANSI'"),
	"ORACLE":            session("sql_mode", "'ORACLE'"),
	"at once":           session("sql_mode", "'SIMULTANEOUS_ASSIGNMENT'"),
	"strict":            session("sql_mode", "'TRADITIONAL,NO_BACKSLASH_ESCAPES,HIGH_NOT_PRECEDENCE,IGNORE_SPACE,NO_UNSIGNED_SUBTRACTION'"),
	"lax":               session("sql_mode", "''"),
	"far east":          session("time_zone", "'+13:00'"),
	"serializable":      session("tx_isolation", "'SERIALIZABLE'"),
	"read uncommitted":  session("tx_isolation", "'READ-UNCOMMITTED'"),
	"safe updates":      session("sql_safe_updates", "1"),
	"short waits":       session("innodb_lock_wait_timeout", "1"),
	"converts":          session("collation_connection", "'utf16_general_ci'"),
	"converts to less":  session("collation_connection", "'latin1_swedish_ci'"),
	"nothing commits":   session("autocommit", "0"),
	"chained":           session("completion_type", "'CHAIN'"),
	"hangs up":          session("completion_type", "'RELEASE'"),
	"no empty strings":  session("sql_mode", "'EMPTY_STRING_IS_NULL'"),
	"read only":         session("tx_read_only", "1"),
	"few rows":          session("sql_select_limit", "0"),
	"no joins":          session("sql_big_selects", "0", "max_join_size", "1"),
	"old character set": session("character_set_client", "latin1", "character_set_connection", "latin1", "character_set_results", "latin1"),
}

// session sets variables, given with their values.
func session(variables ...string) func(*mysql.Config) {
	return func(c *mysql.Config) {
		c.Params = map[string]string{}
		for v := range slices.Chunk(variables, 2) {
			c.Params[v[0]] = v[1]
		}
	}
}

// Sessions with any settings share the same locks.
func TestRowInOddSessions(t *testing.T) {
	t.Parallel()
	u, _ := freshDatabase(t, Row)
	usual := rowAt(t, u)
	for what, change := range oddSessions {
		t.Run(what, func(t *testing.T) {
			b := rowOn(t, rowPool(t, u, change))
			wholeLife(t, b, usual, "Schloß '\"\\ 🔒 "+what)
			wholeLife(t, usual, b, "again "+what)
		})
	}
}

// wholeLife runs all calls on a lock through b, and checks what other sees.
func wholeLife(t *testing.T, b, other driver.Backend, name string) {
	t.Helper()
	x := asks(name, driver.Exclusive)
	x.Meta = map[string]string{"who": "«me»"}
	first := take(t, b, x)
	if held := refused(t, other, asks(name, driver.Exclusive)); held.Holders[0].Meta["who"] != "«me»" {
		t.Errorf("held by %v", held.Holders[0].Meta)
	}
	if again := take(t, b, x); again.Fence <= first.Last() {
		t.Errorf("fence %d after %d", again.Fence, first.Last())
	}
	renews(t, b, x, nil)
	release(t, b, x)
	renews(t, b, x, driver.ErrLost)
	wantIs(t, b.Release(t.Context(), x.Hold), driver.ErrLost)
	one, two, writer := asks(name, driver.Read), asks(name, driver.Read), asks(name, driver.Write)
	take(t, b, one)
	take(t, other, two)
	writer.Queue = true
	refused(t, b, writer)
	names := 0
	err := other.(driver.Inspector).List(t.Context(), name, func(n string) bool { names++; return n == name })
	if err != nil || names != 1 {
		t.Errorf("%d names are listed, %v", names, err)
	}
	renews(t, b, one, nil)
	release(t, b, one)
	release(t, other, two)
	if last := take(t, b, writer); last.Fence <= first.Last() {
		t.Errorf("fence %d after %d", last.Fence, first.Last())
	}
	release(t, b, writer)
}

// A very small pool is enough.
func TestRowInSmallPools(t *testing.T) {
	t.Parallel()
	u, _ := freshDatabase(t, Row)
	for _, size := range []int{1, 2, 3} {
		one, two := rowPool(t, u, nil), rowPool(t, u, nil)
		one.SetMaxOpenConns(size)
		two.SetMaxOpenConns(size)
		a, b, c := rowOn(t, one), rowOn(t, one), rowOn(t, two)
		var wg sync.WaitGroup
		for i, pair := range [][2]*Backend{{a, b}, {b, a}, {a, c}, {c, a}} {
			wg.Go(func() { handOver(t, pair[0], pair[1], fmt.Sprint(size, " ", i), 5, 0) })
		}
		wg.Wait()
		if open := one.Stats().MaxOpenConnections; open != size {
			t.Errorf("the pool's limit is %d; it was %d", open, size)
		}
	}
}

// A lease ends by the server's clock, and never before the requested TTL.
func TestRowUsesTheServersClock(t *testing.T) {
	t.Parallel()
	u, db := freshDatabase(t, Row)
	b := rowAt(t, u)
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Read} {
		r := asks("clock "+mode.String(), mode)
		for range 3 {
			before := ask(t, db, "SELECT "+clockSQL)
			g := take(t, b, r)
			end := ask(t, db, "SELECT until FROM distlock_locks WHERE name = ?", r.Name) - r.TTL.Microseconds()
			if end < before {
				t.Errorf("%v: the lease began at %d; it was requested after %d", mode, end, before)
			}
			if number := int64(g.Fence >> 10); number < before {
				t.Errorf("%v: number %d is before the clock, %d", mode, number, before)
			}
		}
	}
}

// Sixteen readers in as many processes share one row. None is refused while the lock is free, and no
// hold is lost.
func TestRowReadersOfManyProcesses(t *testing.T) {
	t.Parallel()
	u, db := freshDatabase(t, Row)
	var wg sync.WaitGroup
	for range 16 {
		b := rowAt(t, u)
		wg.Go(func() {
			for range 3 {
				r := asks("readers", driver.Read)
				take(t, b, r)
				renews(t, b, r, nil)
				release(t, b, r)
			}
		})
	}
	wg.Wait()
	if n := ask(t, db, "SELECT COUNT(*) FROM distlock_locks WHERE claims <> ''"); n != 0 {
		t.Error("claims are left")
	}
}

// Sixteen processes compete for one lock. No two hold it at once, fences increase, and the server
// returns no errors.
func TestRowUnderContention(t *testing.T) {
	t.Parallel()
	const table = "a_row_that_many_want"
	u, _ := freshDatabase(t, Row)
	var inside, rounds atomic.Int64
	var last atomic.Uint64
	var wg sync.WaitGroup
	for range 16 {
		b := connect(t, u+"&table="+table)
		wg.Go(func() {
			for rounds.Load() < 100 {
				r := asks("fight", driver.Exclusive)
				g, err := b.Acquire(t.Context(), r)
				if errors.Is(err, driver.ErrHeld) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				if n := inside.Add(1); n != 1 {
					t.Errorf("%d hold", n)
				}
				if before := last.Swap(g.Last()); g.Fence <= before {
					t.Errorf("fence %d after %d", g.Fence, before)
				}
				rounds.Add(1)
				inside.Add(-1)
				release(t, b, r)
			}
		})
	}
	wg.Wait()
	for _, line := range testserver.SharedMariaDB(t).SQLErrors() {
		// The table was missing at first, and on a busy machine one may wait for its row for a second.
		if strings.Contains(line, table) && !strings.Contains(line, "ERROR 1146") && !strings.Contains(line, "ERROR 1205") {
			t.Errorf("the server answered: %s", line)
		}
	}
}

// Many holds are renewed by few statements, and each gets its own answer.
func TestRowRenewsMany(t *testing.T) { rowRenews(t, 1000) }

func TestLongRowRenewsThousands(t *testing.T) { rowRenews(t, 5000) }

func rowRenews(t *testing.T, many int) {
	t.Parallel()
	srv := testserver.MariaDB(t, testserver.MariaDBOptions{Args: []string{"--innodb-flush-log-at-trx-commit=2"}})
	u := srv.Database(t)
	b, db := rowAt(t, u), srv.DB(t, u)
	n0 := notifierOf(t, b)
	holds := make([]driver.Hold, many)
	var wg sync.WaitGroup
	for part := range slices.Chunk(holds, many/10) {
		wg.Go(func() {
			for i := range part {
				r := asks("many "+driver.NewOwner(), driver.Exclusive)
				if _, err := b.Acquire(t.Context(), r); err != nil {
					t.Error(err)
					return
				}
				part[i] = r.Hold
			}
		})
	}
	wg.Wait()
	run := statements(t, db, func() {
		for _, err := range b.Renew(t.Context(), holds) {
			if err != nil {
				t.Fatal(err)
			}
		}
	})
	if want := int64(many+511) / 512; run != want {
		t.Errorf("%d renewals took %d statements; want %d", many, run, want)
	}
	if n := ask(t, db, "SELECT COUNT(*) FROM distlock_locks WHERE claims LIKE CONCAT('% ', ?, '/%')", n0.id); n != int64(many) {
		t.Errorf("%d of %d rows have an address", n, many)
	}
	holds[17].Owner = driver.NewOwner()
	for i, err := range b.Renew(t.Context(), holds[:300]) {
		if errors.Is(err, driver.ErrLost) != (i == 17) {
			t.Errorf("hold %d: %v", i, err)
		}
	}
}

// statements counts the prepared statements that the server executes during f.
func statements(t *testing.T, db *sql.DB, f func()) int64 {
	t.Helper()
	count := func() (n int64) {
		var name string
		must.OK(t, db.QueryRowContext(t.Context(), "SHOW GLOBAL STATUS LIKE 'Com_stmt_execute'").Scan(&name, &n))
		return n
	}
	before := count()
	f()
	return count() - before
}

// Each call takes as few statements as possible.
func TestRowStatementsOfEachCall(t *testing.T) {
	t.Parallel()
	srv := testserver.MariaDB(t, testserver.MariaDBOptions{})
	u := srv.Database(t)
	b, db := rowAt(t, u), srv.DB(t, u)
	notifierOf(t, b)
	warm := asks("mutex", driver.Exclusive)
	take(t, b, warm)
	release(t, b, warm)
	x, reader, beside := asks("mutex", driver.Exclusive), asks("reader", driver.Read), asks("reader", driver.Read)
	for _, call := range []struct {
		what string
		want int64
		do   func()
	}{
		{"lock", 1, func() { take(t, b, x) }},
		{"lock again", 1, func() { take(t, b, x) }},
		{"refusal", 1, func() { refused(t, b, asks("mutex", driver.Exclusive)) }},
		{"renewal", 1, func() { renews(t, b, x, nil) }},
		{"unlock", 1, func() { release(t, b, x) }},
		{"new lock", 3, func() { take(t, b, asks("new", driver.Exclusive)) }},
		{"first reader", 3, func() { take(t, b, reader) }},
		{"second reader", 1, func() { take(t, b, beside) }},
		{"reader's renewal", 1, func() { renews(t, b, reader, nil) }},
		{"reader's unlock", 1, func() { release(t, b, reader) }},
	} {
		if got := statements(t, db, call.do); got != call.want {
			t.Errorf("%s: %d statements; want %d", call.what, got, call.want)
		}
	}
}

// A row that another program corrupted is an error for that lock only, and the error says so.
func TestRowSpoilt(t *testing.T) {
	t.Parallel()
	u, db := freshDatabase(t, Row)
	b := rowAt(t, u)
	for _, change := range []string{
		"claims = '{'", "claims = CONCAT(claims, '\\n')", "claims = REPLACE(claims, ' h', ' g')", "claims = REPLACE(claims, '\\nr', '\\ny')",
	} {
		r := asks("spoilt "+change, driver.Read)
		take(t, b, r)
		do(t, db, "UPDATE distlock_locks SET "+change+" ORDER BY version DESC LIMIT 1")
		_, err := b.Acquire(t.Context(), asks(r.Name, driver.Write))
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "changed by another program") {
			t.Errorf("%s: %v", change, err)
		}
		take(t, b, asks("another "+change, driver.Exclusive))
	}
}

// List finds names of any length, page by page, and no names of other prefixes.
func TestRowListsMany(t *testing.T) {
	t.Parallel()
	u, db := freshDatabase(t, Row)
	b := rowAt(t, u)
	long := strings.Repeat("é", 2000)
	want := map[string]bool{}
	var rows []string
	for i := range 1300 {
		name := fmt.Sprint(long, i)
		want[name] = true
		rows = append(rows, fmt.Sprintf("(UNHEX(SHA2('%s', 256)), '%s', 1, 0, 9000000000000000, '\nxo h1 1 9000000000000000 0  ')", name, name))
	}
	take(t, b, asks("gone", driver.Exclusive))
	do(t, db, "UPDATE distlock_locks SET until = 1",
		"INSERT INTO distlock_locks (k, name, version, void, until, claims) VALUES "+strings.Join(rows, ", "))
	for _, prefix := range []string{"", "é", long} {
		got := map[string]bool{}
		err := b.List(t.Context(), prefix, func(name string) bool {
			if got[name] {
				t.Errorf("%q twice", name[len(long):])
			}
			got[name] = true
			return true
		})
		if err != nil || len(got) != len(want) {
			t.Errorf("%d names, %v; want %d", len(got), err, len(want))
		}
	}
	for _, prefix := range []string{"\xc3", "è", long + "x", "e"} {
		expect.OK(t, b.List(t.Context(), prefix, func(name string) bool { return prefix == "\xc3" }))
	}
}

// blocked locks a row in another program's transaction until free is called. free may change the row.
func blocked(t *testing.T, db *sql.DB, name string) (free func(change string)) {
	t.Helper()
	tx := must.Get(db.BeginTx(t.Context(), nil))(t)
	t.Cleanup(func() { tx.Rollback() })
	k := keyOf(name)
	must.Get(tx.Exec("SELECT 1 FROM distlock_locks WHERE k = ? FOR UPDATE", k))(t)
	return func(change string) {
		if change != "" {
			expect.OK(t, expect.Err(tx.Exec("UPDATE distlock_locks SET version = version + 1, "+change+" WHERE k = ?", k)))
		}
		expect.OK(t, tx.Commit())
	}
}

// waitingLocks waits until n statements wait for a row. InnoDB does not update its list of them while
// it is read often.
func waitingLocks(t *testing.T, db *sql.DB, n int64) {
	t.Helper()
	until(t, fmt.Sprint(n, " statements wait for the row"), func() bool {
		return ask(t, db, "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE IN ('Updating', 'Sending data', 'Statistics') AND DB = DATABASE()") >= n
	})
}

// A statement whose caller gave up may be executed later. A later release undoes it.
func TestRowLandsLate(t *testing.T) {
	t.Parallel()
	u, db := freshDatabase(t, Row)
	b := rowAt(t, u)
	r := asks("late", driver.Exclusive)
	take(t, b, r)
	release(t, b, r)
	free := blocked(t, db, r.Name)
	r = asks("late", driver.Exclusive)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := b.Acquire(ctx, r)
		if err == nil || errors.Is(err, driver.ErrHeld) || driver.Final(err) {
			t.Errorf("an attempt without an answer: %v; want an unknown outcome", err)
		}
	})
	waitingLocks(t, db, 1)
	cancel()
	wg.Wait()
	released := make(chan error, 1)
	wg.Go(func() { released <- b.Release(t.Context(), r.Hold) })
	waitingLocks(t, db, 1)
	free("")
	if err := <-released; err != nil && !errors.Is(err, driver.ErrLost) {
		t.Error(err)
	}
	wg.Wait()
	until(t, "the lock is free", func() bool {
		next := asks("late", driver.Exclusive)
		_, err := b.Acquire(t.Context(), next)
		return err == nil
	})
}

// A statement that exceeded the server's lock wait timeout had no effect. It is repeated, and takes
// effect once.
func TestRowAsksAgainAfterLockWaitTimeout(t *testing.T) {
	t.Parallel()
	u, db := freshDatabase(t, Row)
	b := rowOn(t, rowPool(t, u, session("innodb_lock_wait_timeout", "1")))
	r := asks("timeout", driver.Exclusive)
	take(t, b, r)
	release(t, b, r)
	free := blocked(t, db, r.Name)
	done := make(chan driver.Grant, 1)
	go func() { done <- must.Get(b.Acquire(t.Context(), r))(t) }()
	waitingLocks(t, db, 1)
	time.Sleep(1500 * time.Millisecond) // longer than the timeout
	free("")
	g := <-done
	if version := ask(t, db, "SELECT version FROM distlock_locks WHERE name = 'timeout'"); version != int64(g.Fence>>10) {
		t.Errorf("after the grant of version %d the row has version %d", g.Fence>>10, version)
	}
}

// A renewal that finds its row locked is unknown. When it is repeated, a hold that another owner took
// over is lost, and an untouched one is renewed.
func TestRowRenewalOfALockedRow(t *testing.T) {
	t.Parallel()
	u, db := freshDatabase(t, Row)
	b := rowAt(t, u)
	for change, want := range map[string]error{
		"": nil,
		"claims = REPLACE(claims, '\\nx', '\\nx0')": driver.ErrLost,
		"claims = ''": driver.ErrLost,
	} {
		r := asks("locked", driver.Exclusive)
		take(t, b, r)
		r.TTL = long
		free := blocked(t, db, r.Name)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		err := b.Renew(ctx, []driver.Hold{r.Hold})[0]
		cancel()
		if err == nil || errors.Is(err, driver.ErrLost) || driver.Final(err) {
			t.Errorf("a renewal of a locked row: %v; want an unknown outcome", err)
		}
		free(change)
		renews(t, b, r, want)
		do(t, db, "UPDATE distlock_locks SET until = 0, claims = ''")
	}
}

// The statements that decide by the text of a row answer as package claims does.
func TestRowSameAsClaims(t *testing.T) {
	t.Parallel()
	u, db := freshDatabase(t, Row)
	locktest.SameAsClaims(t, connect(t, u), 100, func(name, owner string) {
		must.Get(db.Exec(`UPDATE distlock_locks SET version = version + 1,
			claims = REGEXP_REPLACE(claims, CONCAT('(\\n.', ?, ' [^ ]* [0-9]* )[0-9]+'), '\\11') WHERE name = ?`, owner, name))(t)
	})
}
