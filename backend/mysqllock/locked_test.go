package mysqllock

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/locktest"
)

// leaseStrategies keep leases in tables.
var leaseStrategies = []Strategy{Row, UniqueIndex, Version}

// An administrator's transaction keeps one row locked.
func TestHoldsBesideALockedRow(t *testing.T) {
	t.Parallel()
	for _, s := range leaseStrategies {
		for _, mode := range []driver.Mode{driver.Exclusive, driver.Read} {
			if s != Row && mode != driver.Exclusive {
				continue
			}
			t.Run(string(s)+" "+mode.String(), func(t *testing.T) {
				t.Parallel()
				url, db := freshDatabase(t, s)
				b := connect(t, url)
				locktest.BesideALockedRow(t, b, connect(t, url), mode, lockRow(t, db, b.database.opts.Table))
			})
		}
	}
}

// lockRow locks rows of a table.
func lockRow(t *testing.T, db *sql.DB, table string) locktest.LockRow {
	where := "name = ?"
	if table == strategies[0].table {
		where = "k = UNHEX(SHA2(?, 256))"
	}
	return func(name string) (unlock func()) {
		t.Helper()
		tx, err := db.BeginTx(context.Background(), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = tx.Rollback() })
		query := "SELECT 1 FROM " + table + " FORCE INDEX (PRIMARY) WHERE " + where + " FOR UPDATE"
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
	for _, s := range leaseStrategies {
		t.Run(string(s), func(t *testing.T) {
			t.Parallel()
			url, db := freshDatabase(t, s)
			b := connect(t, url)
			r := request("stuck", long)
			take(t, b, r)
			defer lockRow(t, db, b.database.opts.Table)(r.Name)()
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
		})
	}
}

func TestRenewWaitsForItsOwnRow(t *testing.T) {
	t.Parallel()
	url, db := freshDatabase(t, Row)
	b := connect(t, url)
	mine := request("mine", long)
	take(t, b, mine)
	locktest.RenewWaitsForItsRow(t, b, mine.Hold, lockRow(t, db, b.database.opts.Table))
}
