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
