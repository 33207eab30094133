// Package occsql is package occ for rows with a version column, through database/sql.
//
// For a single value, name the columns once:
//
//	stock, err := occsql.NewColumn[int](occsql.MySQL, occsql.Names{Table: "stock", Key: "sku", Value: "quantity", Version: "version"})
//	left, err := stock.Update(ctx, db, "apple", func(n int) (int, error) { return n - 1, nil })
//
// For statements of your own: [Stored].
//
// # The version column
//
// It is a BIGINT NOT NULL DEFAULT 0. Every writer must raise it: the change of a writer that doesn't is
// overwritten. Comparing a version instead of the value also detects a value that changed and changed
// back. An updated_at column is no replacement: two changes may have the same time.
//
// # Row counts of an UPDATE
//
// MySQL and MariaDB count the rows that changed, not those that matched (unless the client sets
// clientFoundRows). An UPDATE that sets a column to its old value counts 0, as one whose version did
// not match. With "version = version + 1" in the statement both counts are the same, in all databases.
//
// Each statement is a transaction of its own. Inside a longer transaction each retry would read the same
// snapshot (REPEATABLE READ, MySQL's default): use SELECT … FOR UPDATE there.
package occsql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/distlock/distlock/fence/fencesql"
	"github.com/distlock/distlock/internal/sqlname"
	"github.com/distlock/distlock/occ"
)

// Dialect is a database. It is the same as fencesql's.
type Dialect = fencesql.Dialect

// The dialects.
const (
	MySQL    = fencesql.MySQL // MariaDB as well
	Postgres = fencesql.Postgres
	SQLite   = fencesql.SQLite
)

// Stored converts the result of ExecContext to the result of occ's store. The statement is an
// UPDATE (or DELETE) whose WHERE clause has the primary key and the version that was read, and it
// raises the version:
//
//	return occsql.Stored(db.ExecContext(ctx, `UPDATE stock SET quantity = ?, version = version + 1
//		WHERE sku = ? AND version = ?`, n, sku, old.version))
//
// For one row it returns true. For none it returns false: another writer was faster, or the row is
// gone, which load then reports. More rows are an error, since the WHERE clause did not identify
// one row; they have been changed. For a serialization failure, or a deadlock in MySQL (SQLSTATE
// 40001), it returns false. It passes other errors on; after a connection error the outcome is
// unknown.
func Stored(result sql.Result, err error) (bool, error) {
	if refused(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	switch {
	case err != nil:
		return false, fmt.Errorf("occsql: the statement was executed, and its effect is unknown: %w", err)
	case n > 1:
		return false, fmt.Errorf("occsql: the statement changed %d rows: want one, by its primary key and version", n)
	}
	return n == 1, nil
}

// refused reports whether err is SQLSTATE 40001, after which the statement was rolled back.
// PostgreSQL's drivers report it by a method, and MySQL's in the text.
func refused(err error) bool {
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		return state.SQLState() == "40001"
	}
	return err != nil && strings.Contains(err.Error(), "(40001)")
}

// Names locates a Column. Names are quoted: spell them as the database does.
type Names struct {
	Table   string // optionally schema.table
	Key     string // identifies a row: the primary key, or unique
	Value   string
	Version string // BIGINT NOT NULL DEFAULT 0
}

// Column is a column that package occ updates. It is safe for concurrent use.
type Column[T any] struct {
	load, store string
	table       string
}

// NewColumn returns a Column whose values are scanned into T, and passed to the driver as T. It
// returns an error for an invalid name. It does not access the database.
func NewColumn[T any](d Dialect, n Names) (*Column[T], error) {
	if d != MySQL && d != Postgres && d != SQLite {
		return nil, fmt.Errorf("occsql: %v: want MySQL, Postgres or SQLite", d)
	}
	for _, name := range append(strings.SplitN(n.Table, ".", 2), n.Key, n.Value, n.Version) {
		if !sqlname.Valid(name) {
			return nil, fmt.Errorf("occsql: name %q: want letters, digits and _, for a table with its schema and a dot before it at most", name)
		}
	}
	quote := func(name string) string { return sqlname.Quote(name, d == MySQL) }
	r := strings.NewReplacer("$t", quote(n.Table), "$k", quote(n.Key), "$v", quote(n.Value), "$n", quote(n.Version))
	c := &Column[T]{
		table: n.Table,
		load:  r.Replace("SELECT $v, $n FROM $t WHERE $k = ?"),
		store: r.Replace("UPDATE $t SET $v = ?, $n = $n + 1 WHERE $k = ? AND $n = ?"),
	}
	if d == Postgres {
		c.load = strings.Replace(c.load, "?", "$1", 1)
		for _, mark := range []string{"$1", "$2", "$3"} {
			c.store = strings.Replace(c.store, "?", mark, 1)
		}
	}
	return c, nil
}

// versioned is a value with its version.
type versioned[T any] struct {
	value   T
	version int64
}

// Update changes the value in the row with a key, and returns the new one. It returns the errors of
// occ.Update, and sql.ErrNoRows for a row that does not exist. change may run several times, and an
// error of change ends Update with nothing stored. db must not be inside a transaction.
func (c *Column[T]) Update(ctx context.Context, db *sql.DB, key any, change func(T) (T, error), opts ...occ.Option) (T, error) {
	load := func(ctx context.Context) (r versioned[T], err error) {
		if err = db.QueryRowContext(ctx, c.load, key).Scan(&r.value, &r.version); err != nil {
			err = fmt.Errorf("occsql: %s %v: %w", c.table, key, err)
		}
		return r, err
	}
	compute := func(_ context.Context, old versioned[T]) (r versioned[T], err error) {
		r.value, err = change(old.value)
		return r, err
	}
	store := func(ctx context.Context, old, new versioned[T]) (bool, error) {
		stored, err := Stored(db.ExecContext(ctx, c.store, new.value, key, old.version))
		if err != nil {
			err = fmt.Errorf("occsql: %s %v: %w", c.table, key, err)
		}
		return stored, err
	}
	r, err := occ.Update(ctx, load, compute, store, opts...)
	return r.value, err
}
