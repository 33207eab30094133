package sqlwrites_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/fence/fencesql"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// levels returns the isolation levels that the database supports.
func (o opened) levels() []sql.IsolationLevel {
	if o.dialect == fencesql.SQLite {
		return []sql.IsolationLevel{sql.LevelDefault}
	}
	return []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable}
}

// eachLevel runs a test on each database at each level.
func eachLevel(t *testing.T, test func(t *testing.T, o opened, level sql.IsolationLevel)) {
	each(t, func(t *testing.T, o opened) {
		for _, level := range o.levels() {
			t.Run(level.String(), func(t *testing.T) { test(t, o, level) })
		}
	})
}

// counter creates the protected number.
func (o opened) counter(t *testing.T) {
	o.exec(t, "DROP TABLE IF EXISTS counter", "CREATE TABLE counter (n INT)", "INSERT INTO counter VALUES (0)")
}

func addOne(ctx context.Context, tx *sql.Tx) error {
	var n int
	if err := tx.QueryRowContext(ctx, "SELECT n FROM counter").Scan(&n); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, fmt.Sprintf("UPDATE counter SET n = %d", n+1))
	return err
}

// Transactions of one holder that begin by entering a new resource run one after the other.
func TestReadModifyWrite(t *testing.T) {
	const goroutines, rounds = 16, 3
	eachLevel(t, func(t *testing.T, o opened, level sql.IsolationLevel) {
		g := o.guard(t)
		o.exec(t, "DELETE FROM distlock_guards")
		o.counter(t)
		var repeated atomic.Int64
		increment := func() error {
			tx, err := o.db.BeginTx(t.Context(), &sql.TxOptions{Isolation: level})
			if err != nil {
				return err
			}
			defer tx.Rollback()
			if err := g.Enter(t.Context(), tx, "counter", 7); err != nil {
				return err
			}
			if err := addOne(t.Context(), tx); err != nil {
				return err
			}
			return tx.Commit()
		}
		var wg sync.WaitGroup
		for range goroutines {
			wg.Go(func() {
				for range rounds {
					err := increment()
					for again(err) {
						repeated.Add(1)
						err = increment()
					}
					expect.OK(t, err)
				}
			})
		}
		wg.Wait()
		t.Logf("%d transactions were retried", repeated.Load())
		expect.Equal(t, o.number(t, "SELECT n FROM counter"), goroutines*rounds, "increments")
		if level == sql.LevelReadCommitted && repeated.Load() > 0 {
			t.Errorf("%d transactions were retried, want none", repeated.Load())
		}
	})
}

// If a transaction read a value that another one then changed, Enter refuses it, or it reads the new
// value after Enter.
func TestReadBeforeEnter(t *testing.T) {
	eachLevel(t, func(t *testing.T, o opened, level sql.IsolationLevel) {
		g := o.guard(t)
		o.counter(t)
		for _, before := range []uint64{0, 33} { // with and without a row
			o.exec(t, "DELETE FROM distlock_guards", "UPDATE counter SET n = 0")
			if before > 0 {
				must.OK(t, g.Do(t.Context(), o.db, "counter", before, nothing))
			}
			o.readEarly(t, g, level)
		}
	})
}

func (o opened) readEarly(t *testing.T, g *fencesql.Guard, level sql.IsolationLevel) {
	t.Helper()
	tx := o.begin(t, level)
	var n int
	must.OK(t, tx.QueryRowContext(t.Context(), "SELECT n FROM counter").Scan(&n))
	if level == sql.LevelSerializable && o.dialect == fencesql.MySQL {
		_ = tx.Rollback() // the read has locked the row: no other transaction can change it
		return
	}
	must.OK(t, g.Do(t.Context(), o.db, "counter", 34, func(tx *sql.Tx) error { return addOne(t.Context(), tx) }))
	err := g.Enter(t.Context(), tx, "counter", 35)
	if err == nil {
		err = tx.QueryRowContext(t.Context(), "SELECT n FROM counter").Scan(&n)
		if err == nil && n != 1 {
			t.Errorf("was accepted, and sees %d", n)
		}
	}
	if err != nil && !again(err) {
		t.Error(err)
	}
	expect.Equal(t, o.dialect == fencesql.MySQL && level == sql.LevelRepeatableRead, errors.Is(err, fencesql.ErrSnapshot), err)
	_ = tx.Rollback()
}

// A transaction waits in Enter for one that is inside, even under the same fence, and then sees its
// writes.
func TestEnterWaits(t *testing.T) {
	each(t, func(t *testing.T, o opened) {
		g := o.guard(t)
		o.counter(t)
		for _, f := range []uint64{33, 33, 34} {
			o.exec(t, "UPDATE counter SET n = 0")
			first := o.begin(t, sql.LevelDefault)
			must.OK(t, g.Enter(t.Context(), first, "counter", f))
			entered := make(chan error)
			go func() {
				entered <- g.Do(t.Context(), o.db, "counter", f, func(tx *sql.Tx) error { return addOne(t.Context(), tx) })
			}()
			select {
			case err := <-entered:
				t.Fatalf("the second did not wait: %v", err)
			case <-time.After(50 * time.Millisecond):
			}
			must.OK(t, addOne(t.Context(), first))
			must.OK(t, first.Commit())
			select {
			case err := <-entered:
				if n := o.number(t, "SELECT n FROM counter"); err != nil || n != 2 {
					t.Errorf("%d, %v", n, err)
				}
			case <-time.After(patience):
				t.Fatal("the second transaction was not accepted")
			}
		}
	})
}

// Several transactions insert a row at once, and the first one rolls back. In MySQL this is a deadlock,
// which Do hides.
func TestFirstEntersRace(t *testing.T) {
	const others = 8
	each(t, func(t *testing.T, o opened) {
		g := o.guard(t)
		first := o.begin(t, sql.LevelDefault)
		must.OK(t, g.Enter(t.Context(), first, "new", 33))
		results := make(chan error)
		for range others {
			go func() { results <- g.Do(t.Context(), o.db, "new", 34, nothing) }()
		}
		time.Sleep(20 * time.Millisecond) // they may or may not wait by now
		must.OK(t, first.Rollback())
		for range others {
			expect.OK(t, <-results)
		}
		expect.Equal(t, o.number(t, "SELECT fence FROM distlock_guards WHERE resource = 'new'"), 34, "the guard is at")
	})
}
