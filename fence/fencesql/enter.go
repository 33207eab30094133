package fencesql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"

	"github.com/distlock/distlock/fence"
)

// ErrSnapshot says that a transaction in MySQL has read before Enter, and that others
// have entered since: it would go on reading what was there before. Roll back, and begin
// again with Enter.
var ErrSnapshot = errors.New("the transaction read before Enter, and sees what is no longer so")

// enterer raises a stored fence, or finds out that it can't. resource is the name of the
// key, for people.
type enterer func(ctx context.Context, tx Tx, key any, resource string, f uint64) error

// enterTable makes the row if it is absent.
func (p place) enterTable() enterer {
	switch p.dialect {
	case MySQL:
		// No change: it locks the row that exists, and no gap, which a locking read of an
		// absent one would. One more, since 0 means that the row was made.
		return p.enterMySQL(lockByInsert(p.sql(
			"INSERT INTO $t ($k, $f) VALUES (:k, :f) ON DUPLICATE KEY UPDATE $f = LAST_INSERT_ID($f + 1) - 1")))
	case SQLite:
		return raiseBy(p.sql("INSERT INTO $t ($k, $f) VALUES (:k, :f) ON CONFLICT ($k) DO UPDATE SET $f = MAX($f, excluded.$f) RETURNING $f"))
	}
	return raiseBy(p.sql("INSERT INTO $t AS g ($k, $f) VALUES (:k, :f) ON CONFLICT ($k) DO UPDATE SET $f = GREATEST(g.$f, excluded.$f) RETURNING g.$f"))
}

// enterColumn needs the row to be there.
func (p place) enterColumn() enterer {
	switch p.dialect {
	case MySQL:
		return p.enterMySQL(lockByRead(p.sql("SELECT $f FROM $t WHERE $k = :k FOR UPDATE")))
	case SQLite:
		return raiseBy(p.sql("UPDATE $t SET $f = MAX($f, :f) WHERE $k = :k RETURNING $f"))
	}
	return raiseBy(p.sql("UPDATE $t SET $f = GREATEST($f, :f) WHERE $k = :k RETURNING $f"))
}

// raiseBy is one statement, which answers the greater of both fences.
func raiseBy(statement string) enterer {
	return func(ctx context.Context, tx Tx, key any, resource string, f uint64) error {
		seen, err := scan(tx.QueryRowContext(ctx, statement, key, int64(f)))
		if err != nil {
			return err
		}
		return fence.Check(resource, f, seen)
	}
}

// locker locks the row, or makes it, and returns its fence as it is now, whatever the
// transaction sees.
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

// enterMySQL compares what the row holds with what the transaction sees of it, before it
// changes that, since it would see its own change. A row that was said to be new is looked
// at as well: what stands between may not tell what LAST_INSERT_ID was.
func (p place) enterMySQL(lock locker) enterer {
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

// valid looks at what a caller brings.
func valid(tx Tx, resource string, f uint64) error {
	if err := fence.Valid(resource, f); err != nil {
		return fmt.Errorf("fencesql: %w", err)
	}
	if _, is := tx.(interface{ SetMaxOpenConns(int) }); is { // *sql.DB, and what embeds it
		return fmt.Errorf("fencesql: %w transaction: a %T would let the row go before the data is used; begin one, or call Do", fence.ErrInvalid, tx)
	}
	if f >= math.MaxInt64 { // one more is needed in MySQL
		return fmt.Errorf("fencesql: %w fence %d: it does not fit a BIGINT", fence.ErrInvalid, f)
	}
	return nil
}

// explain says where it was.
func (p place) explain(resource string, err error) error {
	if errors.Is(err, fence.ErrStale) {
		return fmt.Errorf("fencesql: %w", err)
	}
	return fmt.Errorf("fencesql: enter %q (table %s, %v): %w", resource, p.table, p.dialect, err)
}
