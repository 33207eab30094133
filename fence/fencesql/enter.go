package fencesql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
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

// identifier matches names that need no escaping.
var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func newFenceColumn(d Dialect, table, key, column string) (fenceColumn, error) {
	if d < MySQL || d > SQLite {
		return fenceColumn{}, fmt.Errorf("fencesql: %w %v: want MySQL, Postgres or SQLite", fence.ErrInvalid, d)
	}
	for _, name := range append(strings.SplitN(table, ".", 2), key, column) {
		if !identifier.MatchString(name) {
			return fenceColumn{}, fmt.Errorf("fencesql: %w name %q: want letters, digits and _, for a table with its schema and a dot before it at most", fence.ErrInvalid, name)
		}
	}
	mark := `"`
	if d == MySQL {
		mark = "`"
	}
	quote := func(name string) string { return mark + strings.ReplaceAll(name, ".", mark+"."+mark) + mark }
	return fenceColumn{dialect: d, table: quote(table), key: quote(key), column: quote(column)}, nil
}

// sql inserts the names for $t, $k and $f into a statement, and the placeholders for :k and :f.
// With ? the placeholders must be in the order of the arguments.
func (c fenceColumn) sql(statement string) string {
	k, f := "$1", "$2"
	switch c.dialect {
	case MySQL:
		k, f = "?", "?"
	case SQLite:
		k, f = "?1", "?2"
	}
	return strings.NewReplacer("$t", c.table, "$k", c.key, "$f", c.column, ":k", k, ":f", f).Replace(statement)
}

// enterer raises a stored fence, or refuses. resource is the name of the key in errors.
type enterer func(ctx context.Context, tx Tx, key any, resource string, f uint64) error

// enterTable inserts the row if it is absent.
func (c fenceColumn) enterTable() enterer {
	switch c.dialect {
	case MySQL:
		// This changes nothing. It locks an existing row and no gap, which a locking read of an
		// absent row would. It adds one since 0 means that the row was inserted.
		return c.enterMySQL(lockByInsert(c.sql(
			"INSERT INTO $t ($k, $f) VALUES (:k, :f) ON DUPLICATE KEY UPDATE $f = LAST_INSERT_ID($f + 1) - 1")))
	case SQLite:
		return raiseBy(c.sql("INSERT INTO $t ($k, $f) VALUES (:k, :f) ON CONFLICT ($k) DO UPDATE SET $f = MAX($f, excluded.$f) RETURNING $f"))
	}
	return raiseBy(c.sql("INSERT INTO $t AS g ($k, $f) VALUES (:k, :f) ON CONFLICT ($k) DO UPDATE SET $f = GREATEST(g.$f, excluded.$f) RETURNING g.$f"))
}

// enterColumn requires the row.
func (c fenceColumn) enterColumn() enterer {
	switch c.dialect {
	case MySQL:
		return c.enterMySQL(lockByRead(c.sql("SELECT $f FROM $t WHERE $k = :k FOR UPDATE")))
	case SQLite:
		return raiseBy(c.sql("UPDATE $t SET $f = MAX($f, :f) WHERE $k = :k RETURNING $f"))
	}
	return raiseBy(c.sql("UPDATE $t SET $f = GREATEST($f, :f) WHERE $k = :k RETURNING $f"))
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
func (c fenceColumn) enterMySQL(lock locker) enterer {
	see := c.sql("SELECT $f FROM $t WHERE $k = :k")
	raise := c.sql("UPDATE $t SET $f = :f WHERE $k = :k")
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

// ErrSnapshot means that a transaction in MySQL has read before Enter, and others have entered
// since: it would continue to read old data. Roll back, and start again with Enter.
var ErrSnapshot = errors.New("the transaction read before Enter and sees old data")

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
func (c fenceColumn) explain(resource string, err error) error {
	if errors.Is(err, fence.ErrStale) {
		return fmt.Errorf("fencesql: %w", err)
	}
	return fmt.Errorf("fencesql: enter %q (table %s, %v): %w", resource, c.table, c.dialect, err)
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
