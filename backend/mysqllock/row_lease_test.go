package mysqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// One of many clients takes over an expired lease.
func TestRowTakeOverRace(t *testing.T) {
	t.Parallel()
	url, db := freshDatabase(t, Row)
	b := connect(t, url)
	for round := range 10 {
		name := fmt.Sprint("x", round)
		take(t, b, request(name, long))
		do(t, db, "UPDATE distlock_locks SET until = 1, version = version + 1, claims = '' WHERE name = '"+name+"'")
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
}

// A renewal and a take-over at the very end of a lease never both succeed.
func TestRowRenewedAtTheEnd(t *testing.T) {
	t.Parallel()
	url, _ := freshDatabase(t, Row)
	one, two := connect(t, url), connect(t, url)
	for round := range 12 {
		r, rival := request(fmt.Sprint("x", round), 100*time.Millisecond), request(fmt.Sprint("x", round), long)
		take(t, one, r)
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
		// On a busy machine the row may be locked for so long that an outcome is unknown.
		if errors.Is(renewed, driver.ErrHeld) || driver.Final(renewed) || errors.Is(taken, driver.ErrLost) || driver.Final(taken) {
			t.Errorf("%v, %v", renewed, taken)
		}
	}
}

// A restarted server has the same locks and fences as before the crash. The pool's dead connections
// cause no errors.
func TestRowServerRestarted(t *testing.T) {
	t.Parallel()
	srv := testserver.MariaDB(t, testserver.MariaDBOptions{})
	url := srv.Database(t) + "?create=true"
	b, rival, r := connect(t, url), connect(t, url), request("x", long)
	first := take(t, b, r)
	srv.Kill()
	if err := b.Renew(t.Context(), []driver.Hold{r.Hold})[0]; err == nil || driver.Final(err) || errors.Is(err, driver.ErrLost) {
		t.Errorf("without a server: %v; want an unknown outcome", err)
	}
	srv.Start()
	renews(t, b, r, nil)
	refused(t, rival, request("x", long))
	release(t, b, r)
	if g := take(t, rival, request("x", long)); g.Fence <= first.Last() {
		t.Errorf("fence %d after %d", g.Fence, first.Last())
	}
}

// Fences increase even if the server's clock goes back.
func TestRowClockGoesBack(t *testing.T) {
	t.Parallel()
	url, _ := freshDatabase(t, Row)
	b, r := connect(t, url), request("x", long)
	first := take(t, b, r)
	release(t, b, r)
	base, _, _ := strings.Cut(url, "?")
	past := must.Get(sql.Open("mysql", testserver.MariaDBSource(base)+"&timestamp=1000000"))(t)
	defer past.Close()
	if g := take(t, rowOn(t, past), request("x", long)); g.Fence <= first.Last() {
		t.Errorf("fence %d after %d", g.Fence, first.Last())
	}
}

// An administrator's transaction keeps one row locked.
func TestHoldsBesideALockedRow(t *testing.T) {
	t.Parallel()
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Read} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			url, db := freshDatabase(t, Row)
			locktest.BesideALockedRow(t, connect(t, url), connect(t, url), mode, lockRow(t, db))
		})
	}
}

// lockRow locks rows of the table.
func lockRow(t *testing.T, db *sql.DB) locktest.LockRow {
	return func(name string) (unlock func()) {
		t.Helper()
		tx := must.Get(db.BeginTx(context.Background(), nil))(t)
		t.Cleanup(func() { _ = tx.Rollback() })
		query := "SELECT 1 FROM distlock_locks FORCE INDEX (PRIMARY) WHERE k = UNHEX(SHA2(?, 256)) FOR UPDATE"
		must.OK(t, tx.QueryRow(query, name).Scan(new(int)))
		return func() { _ = tx.Rollback() }
	}
}

// A call on a locked row ends with its context. It leaves no statement behind that would be executed
// later.
func TestCallsOnALockedRow(t *testing.T) {
	t.Parallel()
	url, db := freshDatabase(t, Row)
	b := connect(t, url)
	r := request("stuck", long)
	take(t, b, r)
	defer lockRow(t, db)(r.Name)()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 2)
	go func() { _, err := b.Acquire(ctx, r); done <- err }()
	go func() { done <- b.Release(ctx, r.Hold) }()
	writes := "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB = DATABASE() AND COMMAND <> 'Sleep' AND INFO NOT LIKE 'SELECT%'"
	until(t, "a call waits for the row", func() bool { return ask(t, db, writes) > 0 })
	cancel()
	for range 2 {
		if err := <-done; err == nil || driver.Final(err) || errors.Is(err, driver.ErrLost) {
			t.Errorf("%v; want unknown", err)
		}
	}
	until(t, "no statement is left", func() bool { return ask(t, db, writes) == 0 })
}

func TestRenewWaitsForItsOwnRow(t *testing.T) {
	t.Parallel()
	url, db := freshDatabase(t, Row)
	b := connect(t, url)
	mine := request("mine", long)
	take(t, b, mine)
	locktest.RenewWaitsForItsRow(t, b, mine.Hold, lockRow(t, db))
}

// Statements that wait for a row do not make its changes slower. InnoDB moves the locks of a row whose size changes, and leaves one
// behind for each statement that waits for the row itself, which all look through: 65 clients stopped each other for seconds.
func TestWaitersLeaveNoLocksBehind(t *testing.T) {
	t.Parallel()
	const waiters, growths, many = 12, 16, 6
	url, db := freshDatabase(t, Row)
	b := connect(t, url+"&max_connections=20")
	take(t, b, request("grows", long))
	tx := must.Get(db.BeginTx(t.Context(), nil))(t)
	defer tx.Rollback()
	grow := func() {
		t.Helper()
		must.Get(tx.Exec("UPDATE distlock_locks SET claims = CONCAT(claims, 'x') WHERE k = UNHEX(SHA2('grows', 256))"))(t)
	}
	grow()
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	for range waiters {
		all.Go(func() {
			for ctx.Err() == nil {
				r := asks("grows", driver.Read)
				r.Queue = true
				_, _ = b.Acquire(ctx, r)
			}
		})
	}
	waiting := func(locks int) int64 { // how many have more locks than that
		time.Sleep(150 * time.Millisecond) // the server looks again a tenth of a second after the last question
		return ask(t, db, `SELECT COUNT(*) FROM information_schema.INNODB_TRX
WHERE trx_state = 'LOCK WAIT' AND trx_query LIKE CONCAT('UPDATE `+"`', DATABASE(), '`"+`.%') AND trx_lock_structs > ?`, locks)
	}
	until(t, "statements wait for the row", func() bool { return waiting(0) > waiters/2 })
	for range growths {
		grow()
	}
	// One waits for the row, and all others for that one.
	if left := waiting(many); left > 1 {
		t.Errorf("%d statements that wait for a row, whose size has changed %d times meanwhile, have more than %d locks each", left, growths, many)
	}
}
