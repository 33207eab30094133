package fencesql

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"

	"github.com/distlock/distlock/fence"
)

// DefaultTable is the name of a Guard's table.
const DefaultTable = "distlock_guards"

// Options of a Guard. The zero value is the default.
type Options struct {
	Table string // may have its schema and a dot before it; default DefaultTable
}

// Guard is a table of fences, a row for each resource. Its methods may be called
// concurrently, but not for one transaction.
type Guard struct {
	place
	enter enterer
}

// New makes a Guard. Nothing is asked of the database yet: Schema has the table's
// definition, Create makes it, Check looks whether it will do.
func New(d Dialect, o *Options) (*Guard, error) {
	table := DefaultTable
	if o != nil {
		table = cmp.Or(o.Table, table)
	}
	p, err := newPlace(d, table, "resource", "fence")
	if err != nil {
		return nil, err
	}
	return &Guard{place: p, enter: p.enterTable()}, nil
}

// Schema is the definition of the table. It does nothing if the table exists.
func (g *Guard) Schema() string {
	columns := "$k TEXT NOT NULL PRIMARY KEY, $f INTEGER NOT NULL) WITHOUT ROWID"
	switch g.dialect {
	case MySQL:
		// Binary: a resource is not another one that is spelt a little differently.
		columns = fmt.Sprintf("$k VARBINARY(%d) NOT NULL PRIMARY KEY, $f BIGINT NOT NULL) ENGINE=InnoDB", fence.MaxResource)
	case Postgres:
		// Room in the page lets a raised fence leave the index alone.
		columns = `$k TEXT COLLATE "C" NOT NULL PRIMARY KEY, $f BIGINT NOT NULL) WITH (fillfactor = 50)`
	}
	return g.sql("CREATE TABLE IF NOT EXISTS $t (" + columns)
}

// Create makes the table if it does not exist, and then does what Check does.
func (g *Guard) Create(ctx context.Context, db *sql.DB) error {
	if _, err := db.ExecContext(ctx, g.Schema()); err != nil {
		return fmt.Errorf("fencesql: create table %s in %v: %w", g.table, g.dialect, err)
	}
	return g.Check(ctx, db)
}

// Enter presents a fence for a resource in a transaction, before its first read. If it
// is let in, smaller fences are refused from the commit on, and the resource's row is
// locked until the transaction ends. The first Enter for a resource makes the row.
//
// A smaller fence than one that was committed before is a *fence.StaleError; roll back.
// ErrInvalid: fence 0, or 1<<63-1 and above, a bad name, a *sql.DB instead of a transaction.
// ErrSnapshot: the transaction has read too early. Other errors are the database's, and a
// deadlock or a serialization failure among them means what it always does: begin the
// transaction again. Whatever the error, don't go on in this transaction: MySQL has ended it
// after a deadlock, and each statement that follows stands alone and unguarded. Neither go
// back to a savepoint before Enter, which undoes it.
func (g *Guard) Enter(ctx context.Context, tx Tx, resource string, f uint64) error {
	if err := valid(tx, resource, f); err != nil {
		return err
	}
	if err := g.enter(ctx, tx, resource, resource, f); err != nil {
		return g.explain(resource, err)
	}
	return nil
}

// Do begins a transaction with the database's default options, presents the fence, calls
// do once, and commits. If any of that fails it rolls back and returns the error. Only
// deadlocks and serialization failures in Enter are met by beginning again, a few times.
func (g *Guard) Do(ctx context.Context, db *sql.DB, resource string, f uint64, do func(tx *sql.Tx) error) error {
	return inside(ctx, db, func(tx *sql.Tx) error { return g.Enter(ctx, tx, resource, f) }, do)
}

// probe is the resource of Check, and as long as one may be.
var probe = fmt.Sprintf("%-*s", fence.MaxResource, "distlock: does this table do?")

// Check tries the table out in a transaction that is rolled back. A table that is missing
// or of another shape, another database than the dialect says, and an engine without
// transactions are ErrInvalid, with what the database said.
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
			return errors.New("a transaction that was rolled back left its row behind; has the table an engine without transactions?")
		}
		if !errors.Is(err, errTried) {
			return err
		}
	}
	return nil
}

// tryIn enters and reads what was stored: a server may cut off what does not fit.
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
