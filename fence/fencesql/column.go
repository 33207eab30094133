package fencesql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/distlock/distlock/fence"
)

// Names says where a Column is.
type Names struct {
	Table string // may have its schema and a dot before it
	Key   string // the column that identifies a row: its primary key, or unique
	Fence string // the column with the fence: BIGINT NOT NULL DEFAULT 0
}

// Column is the fence that a row of one of your tables carries itself. Names are quoted:
// spell them as the database does. Its methods may be called concurrently, but not for one
// transaction.
//
// What is protected is a row. Enter, read, compute and write in one transaction; or read
// after Enter, and write later by one statement that compares the fence itself, and ask
// Changed what it did:
//
//	result, err := db.ExecContext(ctx, `UPDATE stock SET quantity = ?, fence = ?
//		WHERE sku = ? AND fence <= ?`, quantity, f, sku, f)
//	if err == nil {
//		err = column.Changed(ctx, db, result, sku, f)
//	}
type Column struct {
	place
	name  string // of the table, for people
	enter enterer
	look  string
}

// NewColumn makes a Column. Nothing is asked of the database yet.
func NewColumn(d Dialect, n Names) (*Column, error) {
	p, err := newPlace(d, n.Table, n.Key, n.Fence)
	if err != nil {
		return nil, err
	}
	look := p.sql("SELECT $f FROM $t WHERE $k = :k")
	if d != SQLite {
		look += " FOR UPDATE" // the row as it is, and not as the transaction sees it
	}
	return &Column{place: p, name: n.Table, enter: p.enterColumn(), look: look}, nil
}

// Enter presents a fence for the row with that key: what Guard.Enter is for a resource.
// The row must exist: sql.ErrNoRows.
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

// Do is what Guard.Do is, for the row with that key.
func (c *Column) Do(ctx context.Context, db *sql.DB, key any, f uint64, do func(tx *sql.Tx) error) error {
	return inside(ctx, db, func(tx *sql.Tx) error { return c.Enter(ctx, tx, key, f) }, do)
}

// Changed tells what an UPDATE or DELETE did whose WHERE is "key = … AND fence <= f" and
// nothing else, and whose UPDATE sets the fence to f. nil: it took place. A
// *fence.StaleError: a greater fence was there. sql.ErrNoRows: there is no such row. tx is
// where it was executed, a transaction or a *sql.DB; the row is looked at only if none was
// counted.
//
// MySQL counts the rows that changed, and none if they held these values already: that
// is nil here.
//
// Such a statement alone protects values that were not read before, or were read after
// Enter. See the rule in package fence.
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
		return c.explain(resource, fmt.Errorf("%w key: it has changed %d rows", fence.ErrInvalid, n))
	}
	seen, err := scan(tx.QueryRowContext(ctx, c.look, key))
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

var errNoChange = errors.New("nothing was changed, though no greater fence is there; does WHERE ask for more than key and fence?")

// resource is how errors call a row.
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
