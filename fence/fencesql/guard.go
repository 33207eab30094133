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
	"unicode/utf8"

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

// Names locates a Column.
type Names struct {
	Table string // optionally schema.table
	Key   string // the column that identifies a row: its primary key, or unique
	Fence string // the column with the fence: BIGINT NOT NULL DEFAULT 0
}

// Column is the fence in a row of your own table. Names are quoted: spell them as the database
// does. Its methods may be called concurrently, but not for one transaction.
//
// It protects the row. Enter, read, compute and write in one transaction. Or read after Enter and
// write later, by one statement that compares the fence itself, and pass its result to Changed:
//
//	result, err := db.ExecContext(ctx, `UPDATE stock SET quantity = ?, fence = ?
//		WHERE sku = ? AND fence <= ?`, quantity, f, sku, f)
//	if err == nil {
//		err = column.Changed(ctx, db, result, sku, f)
//	}
type Column struct {
	fenceColumn
	name  string // of the table, in errors
	enter enterer
	read  string
}

// NewColumn returns a Column. It does not access the database.
func NewColumn(d Dialect, n Names) (*Column, error) {
	p, err := newFenceColumn(d, n.Table, n.Key, n.Fence)
	if err != nil {
		return nil, err
	}
	read := p.sql("SELECT $f FROM $t WHERE $k = :k")
	if d != SQLite {
		read += " FOR UPDATE" // the latest row, and not the one that the transaction sees
	}
	return &Column{fenceColumn: p, name: n.Table, enter: p.enterColumn(), read: read}, nil
}

// Enter presents a fence for the row with a key, as Guard.Enter does for a resource. It returns
// sql.ErrNoRows if there is no such row.
func (c *Column) Enter(ctx context.Context, tx Tx, key any, f uint64) error {
	resource := c.resource(key)
	if err := valid(tx, resource, f); err != nil {
		return err
	}
	if err := c.enter(ctx, tx, key, resource, f); err != nil {
		return c.explain(resource, err)
	}
	return nil
}

// Do does the same as Guard.Do for the row with a key.
func (c *Column) Do(ctx context.Context, db *sql.DB, key any, f uint64, do func(tx *sql.Tx) error) error {
	return inside(ctx, db, func(tx *sql.Tx) error { return c.Enter(ctx, tx, key, f) }, do)
}

// Changed evaluates the result of an UPDATE or DELETE whose WHERE clause is exactly "key = … AND
// fence <= f". An UPDATE must set the fence to f. Changed returns nil if the row was changed, a
// *fence.StaleError if it has a greater fence, and sql.ErrNoRows if there is no such row. tx is the
// transaction or *sql.DB that executed the statement. Changed reads the row only if the statement
// changed none.
//
// MySQL doesn't count rows that had the new values already: Changed returns nil for them.
//
// Alone, such a statement protects values that were not read before, or were read after Enter. See
// the rule in package fence.
func (c *Column) Changed(ctx context.Context, tx Tx, result sql.Result, key any, f uint64) error {
	resource := c.resource(key)
	if err := fence.Valid(resource, f); err != nil {
		return fmt.Errorf("fencesql: %w", err)
	}
	n, err := result.RowsAffected()
	switch {
	case err != nil:
		return c.explain(resource, err)
	case n == 1:
		return nil
	case n > 1:
		return c.explain(resource, fmt.Errorf("%w key: the statement changed %d rows", fence.ErrInvalid, n))
	}
	seen, err := scan(tx.QueryRowContext(ctx, c.read, key))
	if err == nil {
		err = fence.Check(resource, f, seen)
	}
	if err == nil && (seen != f || c.dialect != MySQL) {
		err = errNoChange
	}
	if err != nil {
		return c.explain(resource, err)
	}
	return nil
}

var errNoChange = errors.New("nothing was changed, though there is no greater fence; does WHERE compare more than key and fence?")

// resource returns the name of a row in errors.
func (c *Column) resource(key any) string {
	form := "%s %v"
	if b, is := key.([]byte); is && !utf8.Valid(b) {
		form = "%s %x"
	} else if is {
		key = string(b)
	}
	name := strings.ToValidUTF8(fmt.Sprintf(form, c.name, key), "?")
	return strings.ToValidUTF8(name[:min(len(name), fence.MaxResource)], "")
}
