package mysqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/sqlrow"
)

// blocked locks a row by a transaction of somebody else's, until free is called, which may
// change it.
func blocked(t *testing.T, db *sql.DB, name string) (free func(change string)) {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tx.Rollback() })
	k := sqlrow.KeyOf(name)
	if _, err := tx.Exec("SELECT 1 FROM distlock_locks WHERE k = ? FOR UPDATE", k[:]); err != nil {
		t.Fatal(err)
	}
	return func(change string) {
		if change != "" {
			if _, err := tx.Exec("UPDATE distlock_locks SET rev = rev + 1, "+change+" WHERE k = ?", k[:]); err != nil {
				t.Error(err)
			}
		}
		if err := tx.Commit(); err != nil {
			t.Error(err)
		}
	}
}

// waitingLocks waits until so many statements wait for a row. InnoDB's own list of them is
// not brought up to date while somebody reads it often.
func waitingLocks(t *testing.T, db *sql.DB, n int64) {
	t.Helper()
	until(t, fmt.Sprint(n, " statements wait for the row"), func() bool {
		return ask(t, db, "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE = 'Updating' AND DB = DATABASE()") >= n
	})
}

// A statement whose caller gave up may be executed later. A release that comes after it
// finds what it did.
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

// What waited for longer than the server lets it was not done, is asked again, and is
// done once.
func TestRowAsksAgainAfterLockWaitTimeout(t *testing.T) {
	t.Parallel()
	u, db := freshDatabase(t, Row)
	b := rowOn(t, rowPool(t, u, session("innodb_lock_wait_timeout", "1")))
	r := asks("timeout", driver.Exclusive)
	take(t, b, r)
	release(t, b, r)
	rev := "SELECT rev FROM distlock_locks WHERE name = 'timeout'"
	before := ask(t, db, rev)
	free := blocked(t, db, r.Name)
	done := make(chan error, 1)
	go func() { _, err := b.Acquire(t.Context(), r); done <- err }()
	waitingLocks(t, db, 1)
	time.Sleep(1500 * time.Millisecond) // longer than the timeout
	free("")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if after := ask(t, db, rev); after != before+1 {
		t.Errorf("one attempt changed the row %d times", after-before)
	}
}

// A renewal that finds its row locked is unknown, and tells the truth when it is asked again:
// of a hold that somebody else took over it says that it is lost, of one that nobody did
// that it lives.
func TestRowRenewalOfALockedRow(t *testing.T) {
	t.Parallel()
	u, db := freshDatabase(t, Row)
	b := rowAt(t, u)
	for change, want := range map[string]error{
		"": nil,
		"owner = 'thief', granted = number + 1, number = number + 1, until = until + 60000000": driver.ErrLost,
		"until = 1": driver.ErrLost,
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
		do(t, db, "UPDATE distlock_locks SET until = 0")
	}
}

// A call that was overtaken by a later one of the same owner, of which the answer is known,
// must not end the hold sooner.
func TestRowAcquireThatIsOvertaken(t *testing.T) {
	t.Parallel()
	u, db := freshDatabase(t, Row)
	b := rowAt(t, u)
	r := asks("acquire", driver.Exclusive)
	take(t, b, r)
	free := blocked(t, db, r.Name)
	done := make(chan error, 1)
	go func() { _, err := b.Acquire(context.Background(), r); done <- err }()
	waitingLocks(t, db, 1)
	later := ask(t, db, "SELECT "+clockSQL) + long.Microseconds()
	free(fmt.Sprintf("until = %d", later))
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if end := ask(t, db, "SELECT until FROM distlock_locks WHERE name = ?", r.Name); end < later {
		t.Errorf("the hold ends %d µs too early", later-end)
	}
}
