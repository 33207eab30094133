package pglock

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// An administrator's transaction keeps one row locked.
func TestHoldsBesideALockedRow(t *testing.T) {
	t.Parallel()
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Read} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			plain := testserver.SharedPostgres(t).Database(t)
			url := with(t, plain, "create", "true")
			b, other := open(t, url), open(t, url)
			locktest.BesideALockedRow(t, b, other, mode, rowsOf(t, testserver.SharedPostgres(t).DB(t, plain)))
		})
	}
}

// Locked rows do not exhaust the pool: another hold is renewed while as many attempts as the pool has
// connections wait for locked rows.
func TestLongPoolBesideLockedRows(t *testing.T) {
	t.Parallel()
	plain := testserver.SharedPostgres(t).Database(t)
	b := open(t, with(t, plain, "create", "true"))
	mine := request("mine")
	take(t, b, mine)
	db := testserver.SharedPostgres(t).DB(t, plain)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	attempts := make(chan struct{})
	for i := range 2 * maxConns {
		r := request(fmt.Sprint("locked ", i))
		take(t, b, r)
		release(t, b, r)
		lockRow(t, db, r.Name)
		go func() {
			defer func() { attempts <- struct{}{} }()
			for ctx.Err() == nil {
				_, _ = b.Acquire(ctx, r)
			}
		}()
	}
	defer func() {
		cancel()
		for range 2 * maxConns {
			<-attempts
		}
	}()
	eventually(t, "all connections are in use", func() bool { return b.database.db.Stats().InUse >= maxConns })
	bounded, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	for range 3 {
		must.OK(t, b.Renew(bounded, []driver.Hold{mine.Hold})[0])
	}
}

// lockRow locks a name's row in a transaction.
func lockRow(t *testing.T, db *sql.DB, name string) *sql.Tx {
	t.Helper()
	tx := must.Get(db.BeginTx(context.Background(), nil))(t)
	t.Cleanup(func() { tx.Rollback() })
	must.OK(t, tx.QueryRow("SELECT 1 FROM distlock_locks WHERE name = $1 FOR UPDATE", name).Scan(new(int)))
	return tx
}

// rowsOf lets package locktest lock rows.
func rowsOf(t *testing.T, db *sql.DB) locktest.LockRow {
	return func(name string) func() {
		tx := lockRow(t, db, name)
		return func() { tx.Rollback() }
	}
}

func TestRenewWaitsForItsOwnRow(t *testing.T) {
	t.Parallel()
	plain := testserver.SharedPostgres(t).Database(t)
	b := open(t, with(t, plain, "create", "true"))
	mine := request("mine")
	take(t, b, mine)
	locktest.RenewWaitsForItsRow(t, b, mine.Hold, rowsOf(t, testserver.SharedPostgres(t).DB(t, plain)))
}
