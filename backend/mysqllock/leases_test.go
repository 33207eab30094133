package mysqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
	"github.com/distlock/distlock/internal/sqlrow"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

var eventually = locktest.Eventually

// bothLeaseStrategies runs a test on the two strategies that keep leases in simple tables.
func bothLeaseStrategies(t *testing.T, test func(t *testing.T, s Strategy)) {
	t.Parallel()
	for _, s := range []Strategy{UniqueIndex, Version} {
		t.Run(string(s), func(t *testing.T) {
			t.Parallel()
			test(t, s)
		})
	}
}

// Sixteen clients compete for one lock. The server's deadlocks stay hidden from them. Fences increase,
// and no two clients hold the lock at once.
func TestContention(t *testing.T) {
	bothLeaseStrategies(t, func(t *testing.T, s Strategy) {
		srv := testserver.SharedMariaDB(t)
		if s == Version {
			srv = testserver.MariaDB(t, testserver.MariaDBOptions{}) // other tests cause no deadlocks here
		}
		url := srv.Database(t) + "?create=true&strategy=" + string(s)
		one, two := connect(t, url), connect(t, url)
		const contenders, rounds = 16, 12
		var inside atomic.Int32
		var last atomic.Uint64
		var wg sync.WaitGroup
		for i := range contenders {
			b := []*Backend{one, two}[i%2]
			wg.Go(func() {
				for range rounds {
					r := request("x", long)
					g, err := insistently(t.Context(), b, r)
					if err != nil {
						t.Error(err)
						return
					}
					if inside.Add(1) > 1 {
						t.Error("two hold")
					}
					if before := last.Swap(g.Last()); before >= g.Fence {
						t.Errorf("fence %d after %d", g.Fence, before)
					}
					inside.Add(-1)
					if err := b.Release(t.Context(), r.Hold); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		deadlocks := status(t, srv, "Innodb_deadlocks")
		t.Logf("%d acquisitions, %d deadlocks met", contenders*rounds, deadlocks)
		if s == Version && deadlocks > 0 {
			t.Errorf("%d deadlocks among statements that lock one row each", deadlocks)
		}
	})
}

// insistently retries until the lock is granted. It returns all errors but refusals.
func insistently(ctx context.Context, b *Backend, r driver.Request) (driver.Grant, error) {
	for {
		g, err := b.Acquire(ctx, r)
		if !errors.Is(err, driver.ErrHeld) {
			return g, err
		}
	}
}

func status(t *testing.T, srv *testserver.MariaDBServer, name string) int {
	t.Helper()
	n, err := strconv.Atoi(srv.Ask(t, "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = ?", name))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// One of many clients takes over an expired lease.
func TestTakeOverRace(t *testing.T) {
	bothLeaseStrategies(t, func(t *testing.T, s Strategy) {
		url, db := freshDatabase(t, s)
		b := connect(t, url)
		for round := range 10 {
			name := fmt.Sprint("x", round)
			take(t, b, request(name, long))
			do(t, db, "UPDATE "+b.database.opts.Table+" SET expires = 1 WHERE name = '"+name+"'")
			var granted atomic.Int32
			var wg sync.WaitGroup
			for range 16 {
				wg.Go(func() {
					_, err := b.Acquire(t.Context(), request(name, long))
					if err == nil {
						granted.Add(1)
					} else if !errors.Is(err, driver.ErrHeld) {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if n := granted.Load(); n != 1 {
				t.Errorf("%d took the lease over", n)
			}
		}
	})
}

// A take-over reads a row as expired while a renewal has it locked. The take-over waits for the
// renewal, and finds that the lease lasts.
func TestRenewedWhileTakenOver(t *testing.T) {
	bothLeaseStrategies(t, func(t *testing.T, s Strategy) {
		url, db := freshDatabase(t, s)
		b := connect(t, url)
		table := b.database.opts.Table
		take(t, b, request("x", long))
		do(t, db, "UPDATE "+table+" SET expires = "+clockSQL+" - 1")
		tx := begin(t, db, "SELECT * FROM "+table+" WHERE name = 'x' FOR UPDATE")
		taken := make(chan error, 1)
		go func() {
			taken <- takeExpired(t, url, b, request("x", long))
		}()
		waiting(t, db, table, 1)
		// The version stays: the time alone must keep the row.
		if _, err := tx.Exec("UPDATE "+table+" SET expires = expires + ?", long.Microseconds()); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		if err := <-taken; !errors.Is(err, driver.ErrHeld) {
			t.Errorf("take-over of a renewed lease: %v", err)
		}
	})
}

// takeExpired tries to acquire a lock whose row exists. UniqueIndex would first try an insert, and wait
// for that.
func takeExpired(t *testing.T, url string, b *Backend, r driver.Request) error {
	if b.database.opts.Strategy != UniqueIndex {
		_, err := b.Acquire(t.Context(), r)
		return err
	}
	_, u := uniqueAt(t, url)
	taken, err := u.takeRow(t.Context(), sqlrow.TakeRequest{Name: r.Name, Owner: r.Owner, TTL: r.TTL})
	if err == nil && !taken {
		err = driver.ErrHeld
	}
	return err
}

// begin opens a transaction with a query, and leaves it open.
func begin(t *testing.T, db *sql.DB, query string) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tx.Rollback() })
	rows, err := tx.QueryContext(t.Context(), query)
	if err != nil {
		t.Fatal(err)
	}
	if err := rows.Close(); err != nil {
		t.Fatal(err)
	}
	return tx
}

// waiting returns when n changes of the table have not ended for a while: they wait for a row.
func waiting(t *testing.T, db *sql.DB, table string, n int64) {
	t.Helper()
	eventually(t, fmt.Sprint(n, " statements wait for a row"), func() bool {
		return ask(t, db, "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB = DATABASE() AND INFO LIKE ? AND TIME_MS > 50", "UPDATE%"+table+"%") == n
	})
}

// A renewal and a take-over at the very end of a lease never both succeed.
func TestRenewedAtTheEnd(t *testing.T) {
	bothLeaseStrategies(t, func(t *testing.T, s Strategy) {
		url, _ := freshDatabase(t, s)
		one, two := connect(t, url), connect(t, url)
		for round := range 12 {
			r, rival := request(fmt.Sprint("x", round), 100*time.Millisecond), request(fmt.Sprint("x", round), long)
			eventually(t, "a lease that lasts until its fence is there", func() bool {
				_, err := one.Acquire(t.Context(), r)
				return err == nil
			})
			time.Sleep(r.TTL - 3*time.Millisecond) // until just before its end, which no signal announces
			r.TTL = long
			var renewed, taken error
			var wg sync.WaitGroup
			wg.Go(func() { renewed = one.Renew(t.Context(), []driver.Hold{r.Hold})[0] })
			wg.Go(func() {
				for range 5 {
					if _, taken = two.Acquire(t.Context(), rival); taken == nil {
						return
					}
				}
			})
			wg.Wait()
			if renewed == nil && taken == nil {
				t.Fatal("a lease was renewed and taken over")
			}
			if renewed != nil && !errors.Is(renewed, driver.ErrLost) || taken != nil && !errors.Is(taken, driver.ErrHeld) {
				t.Errorf("%v, %v", renewed, taken)
			}
		}
	})
}

// A dead holder's lock stays held for its TTL, and its successor has a greater fence.
func TestCrashedHolder(t *testing.T) {
	bothLeaseStrategies(t, func(t *testing.T, s Strategy) {
		url, _ := freshDatabase(t, s)
		b, err := Open(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		const ttl = time.Second
		r := request("x", ttl)
		since := time.Now()
		first := take(t, b, r)
		b.Close()
		next := connect(t, url)
		for {
			asked := time.Now()
			g, err := next.Acquire(t.Context(), request("x", long))
			if err == nil {
				if time.Since(since) < ttl {
					t.Errorf("taken over after %v", time.Since(since))
				}
				if g.Fence <= first.Last() {
					t.Errorf("fence %d after %d", g.Fence, first.Last())
				}
				return
			}
			if held := (*driver.HeldError)(nil); !errors.As(err, &held) || asked.Add(-time.Minute).After(since) {
				t.Fatal(err)
			}
		}
	})
}

// A restarted server has the same locks and fences as before the crash. The pool's dead connections
// cause no errors.
func TestServerRestarted(t *testing.T) {
	t.Parallel()
	srv := testserver.MariaDB(t, testserver.MariaDBOptions{})
	type cast struct {
		b, rival *Backend
		r        driver.Request
		first    driver.Grant
	}
	var casts []cast
	for _, s := range []Strategy{UniqueIndex, Version} {
		url := srv.Database(t) + "?create=true&strategy=" + string(s)
		c := cast{b: connect(t, url), rival: connect(t, url), r: request("x", long)}
		c.first = take(t, c.b, c.r)
		casts = append(casts, c)
	}
	srv.Kill()
	for _, c := range casts {
		if err := c.b.Renew(t.Context(), []driver.Hold{c.r.Hold})[0]; err == nil || driver.Final(err) || errors.Is(err, driver.ErrLost) {
			t.Errorf("without a server: %v; want an unknown outcome", err)
		}
	}
	srv.Start()
	for _, c := range casts {
		if err := c.b.Renew(t.Context(), []driver.Hold{c.r.Hold})[0]; err != nil {
			t.Errorf("after the restart: %v", err)
		}
		refused(t, c.rival, request("x", long))
		if err := c.b.Release(t.Context(), c.r.Hold); err != nil {
			t.Error(err)
		}
		if g := take(t, c.rival, request("x", long)); g.Fence <= c.first.Last() {
			t.Errorf("fence %d after %d", g.Fence, c.first.Last())
		}
	}
}

// Fences increase even if the server's clock goes back.
func TestClockGoesBack(t *testing.T) {
	bothLeaseStrategies(t, func(t *testing.T, s Strategy) {
		url, _ := freshDatabase(t, s)
		b := connect(t, url)
		r := request("x", long)
		first := take(t, b, r)
		if err := b.Release(t.Context(), r.Hold); err != nil {
			t.Fatal(err)
		}
		base, _, _ := strings.Cut(url, "?")
		past, err := sql.Open("mysql", testserver.MariaDBSource(base)+"&timestamp=1000000")
		if err != nil {
			t.Fatal(err)
		}
		defer past.Close()
		old, err := New(t.Context(), past, &Options{Strategy: s})
		if err != nil {
			t.Fatal(err)
		}
		defer old.Close()
		if g := take(t, old, request("x", long)); g.Fence <= first.Last() {
			t.Errorf("fence %d after %d", g.Fence, first.Last())
		}
	})
}

// Many holds of two TTLs are renewed, and some of them are lost. Each gets its own answer.
func TestRenewMany(t *testing.T) {
	bothLeaseStrategies(t, func(t *testing.T, s Strategy) {
		url, _ := freshDatabase(t, s)
		b := connect(t, url)
		var holds []driver.Hold
		lost := map[int]bool{3: true, 77: true, 150: true}
		for i := range 151 {
			r := request(fmt.Sprint("x", i), long+time.Duration(i%2)*time.Second)
			if !lost[i] {
				take(t, b, r)
			}
			holds = append(holds, r.Hold)
		}
		for i, err := range b.Renew(t.Context(), holds) {
			if lost[i] != errors.Is(err, driver.ErrLost) || !lost[i] && err != nil {
				t.Errorf("hold %d: %v", i, err)
			}
		}
	})
}

// A custom table may count the changes of its rows. A grant's fence still comes from its row. It does
// not come from that count, which would be less than all fences before.
func TestCountedRows(t *testing.T) {
	t.Parallel()
	srv := testserver.SharedMariaDB(t)
	url := srv.Database(t)
	db := srv.DB(t, url)
	do(t, db, `CREATE TABLE distlock_versions (id BIGINT AUTO_INCREMENT PRIMARY KEY, name VARBINARY(200) NOT NULL UNIQUE,
owner VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '', expires BIGINT NULL, version BIGINT NOT NULL, number BIGINT NOT NULL DEFAULT 0)`)
	b := connect(t, url+"?strategy=version")
	var last uint64
	for range 2 {
		r := request("a", long)
		g := take(t, b, r)
		i, err := b.Inspect(t.Context(), "a")
		if err != nil || len(i.Holders) != 1 || i.Holders[0].Fence != g.Fence {
			t.Errorf("%+v, %v; granted %d", i, err, g.Fence)
		}
		if g.Fence <= last {
			t.Errorf("fence %d after %d", g.Fence, last)
		}
		last = g.Last()
		do(t, db, "DELETE FROM distlock_versions")
	}
}

// uniqueAt opens a URL, and also returns a dialect.
func uniqueAt(t *testing.T, url string) (*Backend, *uniqueDialect) {
	t.Helper()
	b := connect(t, url)
	d, err := newUniqueDialect(t.Context(), b.database)
	if err != nil {
		t.Fatal(err)
	}
	return b, d
}

// An owner that requests its number while another one holds the lock gets none. The counter does not
// increase, or it would pass the holder's fence.
func TestNumberComesTooLate(t *testing.T) {
	t.Parallel()
	url, db := freshDatabase(t, UniqueIndex)
	b, u := uniqueAt(t, url)
	late, holder := request("x", long), request("x", long)
	take(t, b, late)
	do(t, db, "UPDATE distlock_unique SET expires = 1")
	g := take(t, b, holder)
	if n, err := u.number(t.Context(), late.Name, late.Owner); n != 0 || err != nil {
		t.Errorf("got number %d, %v", n, err)
	}
	if n := ask(t, db, "SELECT number FROM distlock_unique_fences"); uint64(n)<<claims.SpanBits != g.Fence {
		t.Errorf("the counter is %d, the holder's fence %d", n, g.Fence)
	}
}

// A row without an end counts as held, even if another program wrote it. A release for its owner frees
// it.
func TestRowOfAnotherProgram(t *testing.T) {
	t.Parallel()
	url, db := freshDatabase(t, UniqueIndex)
	b, _ := uniqueAt(t, url)
	do(t, db, "INSERT INTO distlock_unique (name, owner, expires) VALUES ('x', 'cron@db1', NULL), ('y', '', NULL)")
	for _, name := range []string{"x", "y"} {
		held := refused(t, b, request(name, long))
		if held.Retry != 0 || held.Holders[0].Left >= 0 {
			t.Errorf("%+v", held)
		}
	}
	if err := b.Release(t.Context(), driver.Hold{Name: "x", Owner: "cron@db1", Mode: driver.Exclusive}); err != nil {
		t.Error(err)
	}
	take(t, b, request("x", long))
}

// Taking a number locks the rows of both tables. A call that waits for them may be rolled back as a
// deadlock's victim, and is repeated.
func TestDeadlockIsMet(t *testing.T) {
	t.Parallel()
	url, db := freshDatabase(t, UniqueIndex)
	b, _ := uniqueAt(t, url)
	old := request("x", long)
	take(t, b, old)
	if err := b.Release(t.Context(), old.Hold); err != nil {
		t.Fatal(err)
	}
	tx := begin(t, db, "SELECT * FROM distlock_unique_fences WHERE name = 'x' FOR UPDATE")
	if _, err := tx.Exec("INSERT INTO distlock_unique_fences (name, number) VALUES ('a',1),('b',1),('c',1),('d',1),('e',1)"); err != nil {
		t.Fatal(err) // the server does not choose a transaction with more changes as the victim
	}
	r := request("x", long)
	taken := make(chan error, 1)
	go func() {
		_, err := b.Acquire(t.Context(), r)
		taken <- err
	}()
	waiting(t, db, "distlock_unique_fences", 1)
	if _, err := tx.Exec("UPDATE distlock_unique SET since = 0 WHERE name = 'x'"); err != nil {
		t.Fatalf("the rival was the victim: %v", err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := <-taken; err != nil {
		t.Errorf("the victim: %v", err)
	}
}
