// Package fencesql checks fencing tokens in the transaction that uses the data, in MySQL and MariaDB,
// PostgreSQL, and SQLite, through database/sql and any driver.
//
//	guard, err := fencesql.New(fencesql.Postgres, nil)
//
//	err = guard.Do(ctx, db, "stock:7", distlock.Fence(ctx), func(tx *sql.Tx) error {
//		// read, compute, write, all through tx
//	})
//	// errors.Is(err, fence.ErrStale): another client has held the lock since
//
// # Where the fence is stored
//
// A Guard has a table of its own, distlock_guards(resource, fence), and inserts rows as needed. A
// Column is a column of your own table, in the protected row.
//
// In both cases Enter raises the stored fence to the presented one, or refuses it, and keeps the row
// locked until the transaction ends. Other transactions that enter the same resource wait for that:
// everything after Enter is one atomic step.
//
// # Enter first
//
// Call Enter before the transaction's first read, as Do does. Under REPEATABLE READ a transaction
// continues to see the data of its first read, so data that was read before Enter may be stale.
//
//   - PostgreSQL refuses such a transaction when it enters (SQLSTATE 40001), and so does SQLite
//     (SQLITE_BUSY_SNAPSHOT). Under REPEATABLE READ and SERIALIZABLE, PostgreSQL also refuses one
//     that had to wait in Enter. Roll back and start again: nothing was done.
//   - MySQL refuses nothing. Enter returns ErrSnapshot if the guarded row differs from the one that the
//     transaction sees. It can't detect transactions with the same fence, which belong to the same
//     holder: in these, call Enter first.
//
// In clusters with several writable servers that lock rows separately (Galera, group replication with
// several primaries), send all transactions of a resource to one server.
//
// A transaction whose holder is paused blocks others, as any open transaction does; nothing is lost. To
// bound that, set idle_in_transaction_session_timeout (PostgreSQL), idle_transaction_timeout (MariaDB)
// or wait_timeout (MySQL). For long work, read in one transaction and write in another, with Enter in
// both.
//
// # Cost
//
// Enter takes one statement in PostgreSQL and SQLite. In MySQL it takes two or three short ones, for
// ErrSnapshot. The transaction writes one additional row.
//
// In SQLite set busy_timeout, since transactions wait for the write lock. A transaction that enters
// first may be deferred. Otherwise begin it with BEGIN IMMEDIATE (with modernc's driver:
// _txlock=immediate).
package fencesql

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/distlock/distlock/fence"
)

// DefaultTable is the default name of a Guard's table.
const DefaultTable = "distlock_guards"

// Options configures a Guard. The zero value is the default.
type Options struct {
	Table string // optionally schema.table; default DefaultTable
}

// Guard is a table of fences with a row for each resource. Its methods may be called concurrently,
// but not for one transaction.
type Guard struct {
	fenceColumn
	enter enterer
}

// New returns a Guard. It does not access the database: Schema returns the table's definition,
// Create creates it, and Check checks it.
func New(d Dialect, o *Options) (*Guard, error) {
	table := DefaultTable
	if o != nil {
		table = cmp.Or(o.Table, table)
	}
	p, err := newFenceColumn(d, table, "resource", "fence")
	if err != nil {
		return nil, err
	}
	return &Guard{fenceColumn: p, enter: p.enterTable()}, nil
}

// Schema returns the definition of the table. It has no effect if the table exists.
func (g *Guard) Schema() string {
	columns := "$k TEXT NOT NULL PRIMARY KEY, $f INTEGER NOT NULL) WITHOUT ROWID"
	switch g.dialect {
	case MySQL:
		// Binary: names that differ only in case or accents are different resources.
		columns = fmt.Sprintf("$k VARBINARY(%d) NOT NULL PRIMARY KEY, $f BIGINT NOT NULL) ENGINE=InnoDB", fence.MaxResource)
	case Postgres:
		// Free space in the page lets an update avoid the index.
		columns = `$k TEXT COLLATE "C" NOT NULL PRIMARY KEY, $f BIGINT NOT NULL) WITH (fillfactor = 50)`
	}
	return g.sql("CREATE TABLE IF NOT EXISTS $t (" + columns)
}

// Create creates the table if it does not exist, and then calls Check.
func (g *Guard) Create(ctx context.Context, db *sql.DB) error {
	if _, err := db.ExecContext(ctx, g.Schema()); err != nil {
		return fmt.Errorf("fencesql: create table %s in %v: %w", g.table, g.dialect, err)
	}
	return g.Check(ctx, db)
}

// Enter presents a fence for a resource in a transaction, before its first read. If the fence is
// accepted, smaller ones are refused from the commit on, and the resource's row is locked until the
// transaction ends. The first Enter for a resource inserts the row.
//
// It returns a *fence.StaleError if a greater fence was committed before; roll back. It returns
// ErrInvalid for fence 0, for 1<<63-1 and above, for a bad name, and for a *sql.DB instead of a
// transaction. It returns ErrSnapshot if the transaction has read too early. Other errors come from
// the database; after a deadlock or a serialization failure start the transaction again.
//
// After any error, don't continue in this transaction: MySQL ends it after a deadlock, and each
// later statement would run alone and unguarded. Don't return to a savepoint before Enter either,
// which undoes it.
func (g *Guard) Enter(ctx context.Context, tx Tx, resource string, f uint64) error {
	if err := valid(tx, resource, f); err != nil {
		return err
	}
	if err := g.enter(ctx, tx, resource, resource, f); err != nil {
		return g.explain(resource, err)
	}
	return nil
}

// Do begins a transaction with the database's default options, presents the fence, calls do once,
// and commits. If any of that fails it rolls back and returns the error. After deadlocks and
// serialization failures in Enter it starts again, a few times.
func (g *Guard) Do(ctx context.Context, db *sql.DB, resource string, f uint64, do func(tx *sql.Tx) error) error {
	return inside(ctx, db, func(tx *sql.Tx) error { return g.Enter(ctx, tx, resource, f) }, do)
}

// probe is the resource of Check. It has the maximum length.
var probe = fmt.Sprintf("%-*s", fence.MaxResource, "distlock: is this table suitable?")

// Check tests the table in a transaction that it rolls back. It returns ErrInvalid, with the error
// of the database, for a missing table, other columns, another database than the dialect, and an
// engine without transactions.
func (g *Guard) Check(ctx context.Context, db *sql.DB) error {
	err := g.try(ctx, db)
	if err == nil || ctx.Err() != nil {
		return err
	}
	return fmt.Errorf("fencesql: %w guard table %s in %v; want what Schema says, %q: %w", fence.ErrInvalid, g.table, g.dialect, g.Schema(), err)
}

var errTried = errors.New("tried")

func (g *Guard) try(ctx context.Context, db *sql.DB) error {
	for _, f := range []uint64{math.MaxInt64 - 1, 1} { // the second is stale if the first one stays
		err := inside(ctx, db, func(tx *sql.Tx) error { return g.tryIn(ctx, tx, f) }, nil)
		if errors.Is(err, fence.ErrStale) {
			return errors.New("a transaction was rolled back and left its row; does the table have an engine without transactions?")
		}
		if !errors.Is(err, errTried) {
			return err
		}
	}
	return nil
}

// tryIn enters and reads the stored fence: a server may truncate it.
func (g *Guard) tryIn(ctx context.Context, tx *sql.Tx, f uint64) error {
	if err := g.Enter(ctx, tx, probe, f); err != nil {
		return err
	}
	seen, err := scan(tx.QueryRowContext(ctx, g.sql("SELECT $f FROM $t WHERE $k = :k"), probe))
	if err == nil && seen != f {
		err = fmt.Errorf("%d was stored as %d", f, seen)
	}
	return cmp.Or(err, errTried)
}

// ErrSnapshot means that a transaction in MySQL has read before Enter, and others have entered
// since: it would continue to read old data. Roll back, and start again with Enter.
var ErrSnapshot = errors.New("the transaction read before Enter and sees old data")

// enterer raises a stored fence, or refuses. resource is the name of the key in errors.
type enterer func(ctx context.Context, tx Tx, key any, resource string, f uint64) error

// enterTable inserts the row if it is absent.
func (p fenceColumn) enterTable() enterer {
	switch p.dialect {
	case MySQL:
		// This changes nothing. It locks an existing row and no gap, which a locking read of an
		// absent row would. It adds one since 0 means that the row was inserted.
		return p.enterMySQL(lockByInsert(p.sql(
			"INSERT INTO $t ($k, $f) VALUES (:k, :f) ON DUPLICATE KEY UPDATE $f = LAST_INSERT_ID($f + 1) - 1")))
	case SQLite:
		return raiseBy(p.sql("INSERT INTO $t ($k, $f) VALUES (:k, :f) ON CONFLICT ($k) DO UPDATE SET $f = MAX($f, excluded.$f) RETURNING $f"))
	}
	return raiseBy(p.sql("INSERT INTO $t AS g ($k, $f) VALUES (:k, :f) ON CONFLICT ($k) DO UPDATE SET $f = GREATEST(g.$f, excluded.$f) RETURNING g.$f"))
}

// enterColumn requires the row.
func (p fenceColumn) enterColumn() enterer {
	switch p.dialect {
	case MySQL:
		return p.enterMySQL(lockByRead(p.sql("SELECT $f FROM $t WHERE $k = :k FOR UPDATE")))
	case SQLite:
		return raiseBy(p.sql("UPDATE $t SET $f = MAX($f, :f) WHERE $k = :k RETURNING $f"))
	}
	return raiseBy(p.sql("UPDATE $t SET $f = GREATEST($f, :f) WHERE $k = :k RETURNING $f"))
}

// raiseBy runs one statement, which returns the greater of both fences.
func raiseBy(statement string) enterer {
	return func(ctx context.Context, tx Tx, key any, resource string, f uint64) error {
		seen, err := scan(tx.QueryRowContext(ctx, statement, key, int64(f)))
		if err != nil {
			return err
		}
		return fence.Check(resource, f, seen)
	}
}

// locker locks the row, or inserts it, and returns its latest fence, whatever the transaction sees.
type locker func(ctx context.Context, tx Tx, key any, f uint64) (now uint64, err error)

func lockByRead(statement string) locker {
	return func(ctx context.Context, tx Tx, key any, _ uint64) (uint64, error) {
		return scan(tx.QueryRowContext(ctx, statement, key))
	}
}

func lockByInsert(statement string) locker {
	return func(ctx context.Context, tx Tx, key any, f uint64) (uint64, error) {
		result, err := tx.ExecContext(ctx, statement, key, int64(f))
		if err != nil {
			return 0, err
		}
		next, err := result.LastInsertId()
		if next == 0 {
			return f, err
		}
		return uint64(next - 1), err
	}
}

// enterMySQL compares the fence in the row with the one that the transaction sees, before it
// changes the row, since it would see its own change. It also checks a row that seems to be new: a
// proxy may not pass on LAST_INSERT_ID.
func (p fenceColumn) enterMySQL(lock locker) enterer {
	see := p.sql("SELECT $f FROM $t WHERE $k = :k")
	raise := p.sql("UPDATE $t SET $f = :f WHERE $k = :k")
	return func(ctx context.Context, tx Tx, key any, resource string, f uint64) error {
		now, err := lock(ctx, tx, key, f)
		if err != nil {
			return err
		}
		if err := fence.Check(resource, f, now); err != nil {
			return err
		}
		seen, err := scan(tx.QueryRowContext(ctx, see, key))
		if errors.Is(err, sql.ErrNoRows) || err == nil && seen != now {
			return ErrSnapshot
		}
		if err == nil && now < f {
			_, err = tx.ExecContext(ctx, raise, int64(f), key)
		}
		return err
	}
}

// scan reads a fence.
func scan(row *sql.Row) (uint64, error) {
	var n sql.NullInt64
	if err := row.Scan(&n); err != nil {
		return 0, err
	}
	if !n.Valid || n.Int64 < 0 {
		return 0, fmt.Errorf("%w stored fence %v: want 0 or more, and a column that is NOT NULL", fence.ErrInvalid, n)
	}
	return uint64(n.Int64), nil
}

// valid checks a caller's arguments.
func valid(tx Tx, resource string, f uint64) error {
	if err := fence.Valid(resource, f); err != nil {
		return fmt.Errorf("fencesql: %w", err)
	}
	if _, is := tx.(interface{ SetMaxOpenConns(int) }); is { // *sql.DB, and what embeds it
		return fmt.Errorf("fencesql: %w transaction: a %T would unlock the row before the data is used; begin a transaction, or call Do", fence.ErrInvalid, tx)
	}
	if f >= math.MaxInt64 { // MySQL adds one
		return fmt.Errorf("fencesql: %w fence %d: it does not fit a BIGINT", fence.ErrInvalid, f)
	}
	return nil
}

// explain adds the table to an error.
func (p fenceColumn) explain(resource string, err error) error {
	if errors.Is(err, fence.ErrStale) {
		return fmt.Errorf("fencesql: %w", err)
	}
	return fmt.Errorf("fencesql: enter %q (table %s, %v): %w", resource, p.table, p.dialect, err)
}

// attempts bounds how often a transaction is started again because Enter failed.
const attempts = 10

// inside calls do in a transaction that has entered.
func inside(ctx context.Context, db *sql.DB, enter, do func(tx *sql.Tx) error) error {
	tx, err := begin(ctx, db, enter)
	for n := 1; n < attempts && ctx.Err() == nil && conflicts(err); n++ {
		tx, err = begin(ctx, db, enter)
	}
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // no effect after Commit
	if err := do(tx); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("fencesql: commit: %w", err)
	}
	return nil
}

// begin begins a transaction and enters. On an error it leaves none open.
func begin(ctx context.Context, db *sql.DB, enter func(tx *sql.Tx) error) (*sql.Tx, error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("fencesql: %w", err)
	}
	if err := enter(tx); err != nil {
		_ = tx.Rollback()
		return nil, err
	}
	return tx, nil
}

// conflicts reports whether err is a deadlock or a serialization failure: SQLSTATE 40xxx.
// PostgreSQL's drivers report it by a method, and MySQL's in the text.
func conflicts(err error) bool {
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		return strings.HasPrefix(state.SQLState(), "40")
	}
	return err != nil && strings.Contains(err.Error(), "(40001)")
}
