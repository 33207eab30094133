package fencesql

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"strings"

	"github.com/distlock/distlock/fence"
)

// Dialect is a database.
type Dialect int

// The dialects.
const (
	MySQL    Dialect = iota + 1 // MySQL 5.7 or later, MariaDB 10.6 or later; InnoDB
	Postgres                    // PostgreSQL 12 or later
	SQLite                      // SQLite 3.35 or later
)

// String returns the database's name.
func (d Dialect) String() string {
	switch d {
	case MySQL:
		return "MySQL"
	case Postgres:
		return "PostgreSQL"
	case SQLite:
		return "SQLite"
	}
	return fmt.Sprintf("dialect %d", int(d))
}

// Tx is the part of a transaction that Enter needs: a *sql.Tx, a type that embeds it, or a
// *sql.Conn on which a transaction was begun by hand.
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// fenceColumn is where a fence is stored. Its names are quoted.
type fenceColumn struct {
	dialect            Dialect
	table, key, column string
}

var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func newFenceColumn(d Dialect, table, key, column string) (fenceColumn, error) {
	if d < MySQL || d > SQLite {
		return fenceColumn{}, fmt.Errorf("fencesql: %w %v: want MySQL, Postgres or SQLite", fence.ErrInvalid, d)
	}
	p := fenceColumn{dialect: d}
	schema, name, qualified := strings.Cut(table, ".")
	parts := []string{schema}
	if qualified {
		parts = append(parts, name)
	}
	for _, part := range append(parts, key, column) {
		if !identifier.MatchString(part) {
			return fenceColumn{}, fmt.Errorf("fencesql: %w name %q: want letters, digits and _, for a table with its schema and a dot before it at most", fence.ErrInvalid, part)
		}
	}
	for i, part := range parts {
		parts[i] = d.quote(part)
	}
	p.table, p.key, p.column = strings.Join(parts, "."), d.quote(key), d.quote(column)
	return p, nil
}

func (d Dialect) quote(name string) string {
	if d == MySQL {
		return "`" + name + "`"
	}
	return `"` + name + `"`
}

// sql inserts the names for $t, $k and $f into a statement, and the placeholders for :k and :f.
// With ? the placeholders must be in the order of the arguments.
func (p fenceColumn) sql(statement string) string {
	k, f := "$1", "$2"
	switch p.dialect {
	case MySQL:
		k, f = "?", "?"
	case SQLite:
		k, f = "?1", "?2"
	}
	return strings.NewReplacer("$t", p.table, "$k", p.key, "$f", p.column, ":k", k, ":f", f).Replace(statement)
}
