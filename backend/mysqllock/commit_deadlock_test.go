package mysqllock

import (
	"context"
	"database/sql"
	"testing"

	"github.com/distlock/distlock/driver"
)

// MySQL rolls a deadlock's victim back and goes on with a new transaction, which has not got
// the lock. Work that overlooks that stores nothing.
func TestCommitAfterADeadlockStoresNothing(t *testing.T) {
	b, db, r := forUpdateHold(t)
	do(t, db, "CREATE TABLE pair (n INT PRIMARY KEY, v INT) ENGINE=InnoDB", "INSERT INTO pair VALUES (1, 0), (2, 0)")
	err := b.Commit(t.Context(), r.Owner, func(tx *sql.Tx) error {
		ctx, cancel := context.WithTimeout(t.Context(), patient)
		defer cancel()
		deadlock(t, ctx, db, tx)
		_, err := tx.ExecContext(ctx, "INSERT INTO work VALUES (1)")
		return err
	})
	wantIs(t, err, driver.ErrLost)
	if n := stored(t, db); n != 0 {
		t.Errorf("%d rows stored without the lock", n)
	}
	r.Owner = driver.NewOwner()
	take(t, b, r)
}

// deadlock makes tx the victim of one with another transaction, which has written more.
func deadlock(t *testing.T, ctx context.Context, db *sql.DB, tx *sql.Tx) {
	rival, err := db.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer rival.Rollback()
	exec := func(tx *sql.Tx, text string) {
		if _, err := tx.ExecContext(ctx, text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	for range 50 {
		exec(rival, "INSERT INTO work VALUES (2)")
	}
	exec(rival, "UPDATE pair SET v = 1 WHERE n = 1")
	if _, err := tx.ExecContext(ctx, "SELECT v FROM pair WHERE n = 2 FOR UPDATE"); err != nil {
		t.Error(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); exec(rival, "UPDATE pair SET v = 2 WHERE n = 2") }()
	_, err = tx.ExecContext(ctx, "SELECT v FROM pair WHERE n = 1 FOR UPDATE")
	<-done
	if number(err) != errDeadlock {
		t.Errorf("%v; want a deadlock", err)
	}
}

// Work that ends the transaction by itself is told.
func TestCommitOfWorkThatHasCommitted(t *testing.T) {
	for _, end := range []string{"COMMIT", "ROLLBACK", "CREATE TABLE another (n INT)"} {
		t.Run(end, func(t *testing.T) {
			b, _, r := forUpdateHold(t)
			err := b.Commit(t.Context(), r.Owner, func(tx *sql.Tx) error {
				_, err := tx.ExecContext(t.Context(), end)
				return err
			})
			wantIs(t, err, driver.ErrLost)
		})
	}
}
