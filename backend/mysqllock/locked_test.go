package mysqllock

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/locktest"
)

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
		tx, err := db.BeginTx(context.Background(), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = tx.Rollback() })
		query := "SELECT 1 FROM distlock_locks FORCE INDEX (PRIMARY) WHERE k = UNHEX(SHA2(?, 256)) FOR UPDATE"
		if err := tx.QueryRow(query, name).Scan(new(int)); err != nil {
			t.Fatal(err)
		}
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
