// Package occsql is package occ for rows with a version column, through database/sql.
//
// For a single value, with the columns named once:
//
//	stock, err := occsql.NewColumn[int](occsql.MySQL, occsql.Names{Table: "stock", Key: "sku", Value: "quantity", Version: "version"})
//	left, err := stock.Update(ctx, db, "apple", func(n int) (int, error) { return n - 1, nil })
//
// For statements of your own: [Stored].
//
// # The version column
//
// A BIGINT NOT NULL DEFAULT 0 that every writer raises: one that does not is overwritten.
// Comparing a version and not the value notices also a value that changed and changed back.
// An updated_at column does not do: two changes can have one time.
//
// # How many rows an UPDATE says
//
// MySQL and MariaDB count the rows that changed, not those that were found (unless the client
// asks for clientFoundRows). An UPDATE that sets a column to what it is counts 0, just as one
// whose version did not match. "version = version + 1" in the statement makes both counts the
// same, in all databases.
//
// Each statement is a transaction of its own. Inside one that is longer a retry reads the same
// snapshot again and again (REPEATABLE READ, MySQL's default): use SELECT … FOR UPDATE there.
package occsql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/distlock/distlock/fence/fencesql"
	"github.com/distlock/distlock/occ"
)

// Dialect says which database it is; the same as fencesql's.
type Dialect = fencesql.Dialect

// The dialects.
const (
	MySQL    = fencesql.MySQL // MariaDB as well
	Postgres = fencesql.Postgres
	SQLite   = fencesql.SQLite
)

// Stored makes occ's answer of what ExecContext returned for an UPDATE (or DELETE) whose
// WHERE has the primary key and the version that was read, and which raises the version:
//
//	return occsql.Stored(db.ExecContext(ctx, `UPDATE stock SET quantity = ?, version = version + 1
//		WHERE sku = ? AND version = ?`, n, sku, old.version))
//
// One row: true. None: false, somebody was faster; or there is no such row, which load then
// says. More are an error, since WHERE did not name one row; they have been changed. A
// serialization failure or a deadlock of MySQL's (SQLSTATE 40001) is false.
// Other errors are passed on; after those of the connection nobody knows whether it was stored.
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
		return false, fmt.Errorf("occsql: the statement has changed %d rows: want one, by its primary key and version", n)
	}
	return n == 1, nil
}

// refused reports SQLSTATE 40001, which the drivers for PostgreSQL tell by a method and that
// for MySQL in its text: the statement was rolled back.
func refused(err error) bool {
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		return state.SQLState() == "40001"
	}
	return err != nil && strings.Contains(err.Error(), "(40001)")
}

// Names says where a Column is. They are quoted: spell them as the database does.
type Names struct {
	Table   string // may have its schema and a dot before it
	Key     string // identifies a row: the primary key, or unique
	Value   string
	Version string // BIGINT NOT NULL DEFAULT 0
}

// Column is a column that is updated by package occ. It is safe for concurrent use.
type Column[T any] struct {
	load, store string
	table       string
}

// NewColumn makes a Column whose values are scanned into T, and given to the driver as T.
// The error says which name can't be one. Nothing is asked of the database yet.
func NewColumn[T any](d Dialect, n Names) (*Column[T], error) {
	if d != MySQL && d != Postgres && d != SQLite {
		return nil, fmt.Errorf("occsql: %v: want MySQL, Postgres or SQLite", d)
	}
	quoted := map[string]string{}
	for _, name := range append(strings.SplitN(n.Table, ".", 2), n.Key, n.Value, n.Version) {
		if !identifier.MatchString(name) {
			return nil, fmt.Errorf("occsql: name %q: want letters, digits and _, for a table with its schema and a dot before it at most", name)
		}
		quoted[name] = quote(d, name)
	}
	var table []string
	for part := range strings.SplitSeq(n.Table, ".") {
		table = append(table, quoted[part])
	}
	r := strings.NewReplacer("$t", strings.Join(table, "."), "$k", quoted[n.Key], "$v", quoted[n.Value], "$n", quoted[n.Version])
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

var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func quote(d Dialect, name string) string {
	if d == MySQL {
		return "`" + name + "`"
	}
	return `"` + name + `"`
}

// row is what was read.
type row[T any] struct {
	value   T
	version int64
}

// Update changes the value in the row with that key, and returns the new one. The errors
// are those of occ.Update: a row that does not exist is sql.ErrNoRows. change may run several
// times, and an error of it ends Update with nothing stored. db must not be inside a
// transaction.
func (c *Column[T]) Update(ctx context.Context, db *sql.DB, key any, change func(T) (T, error), opts ...occ.Option) (T, error) {
	load := func(ctx context.Context) (r row[T], err error) {
		if err = db.QueryRowContext(ctx, c.load, key).Scan(&r.value, &r.version); err != nil {
			err = fmt.Errorf("occsql: %s %v: %w", c.table, key, err)
		}
		return r, err
	}
	compute := func(_ context.Context, old row[T]) (r row[T], err error) {
		r.value, err = change(old.value)
		return r, err
	}
	store := func(ctx context.Context, old, new row[T]) (bool, error) {
		stored, err := Stored(db.ExecContext(ctx, c.store, new.value, key, old.version))
		if err != nil {
			err = fmt.Errorf("occsql: %s %v: %w", c.table, key, err)
		}
		return stored, err
	}
	r, err := occ.Update(ctx, load, compute, store, opts...)
	return r.value, err
}
