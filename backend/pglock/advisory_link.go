package pglock

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/pinned"
	"github.com/jackc/pgx/v5/stdlib"
)

// advisoryLink is a connection with locks of its session.
type advisoryLink struct {
	d      *advisoryDialect
	conn   *sql.Conn
	id     string
	closed bool // it stays in an empty transaction between statements
	inTx   bool
}

func (k *advisoryLink) ID() string { return k.id }

// settings let the server notice soon that a waiting client has died, and don't let it end
// a long transaction.
func (k *advisoryLink) settings(ctx context.Context) error {
	text := "SET default_transaction_isolation = 'read committed'"
	if k.d.version >= 140000 {
		text += "; SET client_connection_check_interval = 1000"
	}
	if k.d.version >= 170000 {
		text += "; SET transaction_timeout = 0"
	}
	return k.exec(ctx, text)
}

func (k *advisoryLink) exec(ctx context.Context, text string) error {
	_, err := k.conn.ExecContext(ctx, text)
	return err
}

// Lease: the timeout is for whole ms.
func (k *advisoryLink) Lease(ctx context.Context, lease time.Duration) error {
	ms := (lease + time.Millisecond - 1) / time.Millisecond
	text := fmt.Sprintf("SET idle_in_transaction_session_timeout = %d", ms)
	if k.d.version >= 140000 {
		text += fmt.Sprintf("; SET idle_session_timeout = %d", ms)
	}
	return k.exec(ctx, text)
}

// Ping also begins a new empty transaction, if the last one has ended with an error.
func (k *advisoryLink) Ping(ctx context.Context) error {
	if k.closed && !k.inTx {
		return k.idle(ctx)
	}
	return k.exec(ctx, "SELECT 1")
}

// idle leaves the connection as it is between statements.
func (k *advisoryLink) idle(ctx context.Context) error {
	if !k.closed || k.inTx {
		return nil
	}
	err := k.exec(ctx, "BEGIN ISOLATION LEVEL READ COMMITTED")
	k.inTx = err == nil
	return err
}

// Alive sees what the server has sent unasked, such as that it has closed the connection.
func (k *advisoryLink) Alive() error {
	return k.conn.Raw(func(raw any) error {
		c, ok := raw.(*stdlib.Conn)
		if !ok || canLook && alive(c.Conn().PgConn().Conn()) {
			return nil
		}
		//lint:ignore SA1019 Ping sends something, which would prolong the lease; this takes a millisecond
		return c.Conn().PgConn().CheckConn()
	})
}

// hangUp closes a connection of pgx's, which a pool of pgx's would take back as it is.
func hangUp(raw any) error {
	if c, ok := raw.(*stdlib.Conn); ok {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		c.Conn().Close(ctx)
	}
	return nil
}

// Take tries, and writes the number in the same statement. In an empty transaction it would be
// undone with that, and another connection writes it.
func (k *advisoryLink) Take(ctx context.Context, l pinned.Lock) (number uint64, ok bool, err error) {
	if k.closed || l.Trial {
		return k.takeApart(ctx, l)
	}
	args, err := k.row(l)
	if err != nil {
		return 0, false, err
	}
	err = k.conn.QueryRowContext(ctx, k.d.take, append(args, l.Key)...).Scan(&ok, &number)
	return number, ok, err
}

func (k *advisoryLink) takeApart(ctx context.Context, l pinned.Lock) (number uint64, ok bool, err error) {
	err = k.conn.QueryRowContext(ctx, "SELECT pg_try_advisory_lock($1::bigint)", l.Key).Scan(&ok)
	if err == nil && ok && !l.Trial {
		number, err = k.next(ctx, k.d.db, l)
	}
	return number, ok && err == nil, err
}

// querier is a connection, a transaction or a pool.
type querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// next writes a lock's next number, and who has it.
func (k *advisoryLink) next(ctx context.Context, q querier, l pinned.Lock) (number uint64, err error) {
	args, err := k.row(l)
	if err != nil {
		return 0, err
	}
	err = q.QueryRowContext(ctx, k.d.number, args...).Scan(&number)
	return number, err
}

// row is what is written of a grant.
func (k *advisoryLink) row(l pinned.Lock) ([]any, error) {
	meta, err := json.Marshal(l.Meta)
	return []any{k.d.hashOf(l.Name), l.Name, l.Owner, k.id, string(meta)}, err
}

// Number asks on the lock's own connection, whatever writes.
func (k *advisoryLink) Number(ctx context.Context, l pinned.Lock) (uint64, error) {
	if !k.closed {
		return k.next(ctx, k.conn, l)
	}
	if err := k.Ping(ctx); err != nil {
		return 0, err
	}
	return k.next(ctx, k.d.db, l)
}

// Wait waits for the lock of a transaction, and then takes that of the session, which it is
// certain to get. An error while waiting leaves nothing after the rollback; pg_advisory_lock
// may report one and have the lock all the same.
func (k *advisoryLink) Wait(ctx context.Context, l pinned.Lock, slice time.Duration) (bool, error) {
	if k.inTx {
		if err := k.exec(ctx, "ROLLBACK"); err != nil {
			return false, err
		}
	}
	k.inTx = true
	err := k.exec(ctx, "BEGIN ISOLATION LEVEL READ COMMITTED; "+waiting(slice)+"SELECT pg_advisory_xact_lock("+l.Key+"); SELECT pg_try_advisory_lock("+l.Key+"); COMMIT")
	if err == nil {
		k.inTx = false
		return true, k.idle(ctx)
	}
	if code(err) != lockTimeout {
		return false, err
	}
	return false, k.rollBack(ctx)
}

// waiting are the settings of a wait. An user's own shorter timeouts are for other statements.
func waiting(slice time.Duration) string {
	return fmt.Sprintf("SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = %d; ", slice.Milliseconds())
}

func (k *advisoryLink) rollBack(ctx context.Context) error {
	err := k.exec(ctx, "ROLLBACK")
	if err == nil {
		k.inTx = false
		err = k.idle(ctx)
	}
	return err
}

// Undo looks whether the session has the lock: to give back what it doesn't have would be a
// warning in the server's log.
func (k *advisoryLink) Undo(ctx context.Context, l pinned.Lock) error {
	if k.inTx {
		if err := k.rollBack(ctx); err != nil {
			return err
		}
	}
	return k.exec(ctx, `SELECT pg_advisory_unlock(`+l.Key+`) FROM pg_locks WHERE pid = pg_backend_pid() AND `+thisLock(l))
}

// Drop: the server says whether it was held.
func (k *advisoryLink) Drop(ctx context.Context, l pinned.Lock) error {
	var had bool
	err := k.conn.QueryRowContext(ctx, "SELECT pg_advisory_unlock($1::bigint)", l.Key).Scan(&had)
	if err == nil && !had {
		err = errors.New("the server does not know of the lock")
	}
	return err
}

func (k *advisoryLink) Tx() *sql.Tx { return nil }

func (k *advisoryLink) Commit(context.Context) error { return driver.ErrUnsupported }

func (k *advisoryLink) Close() {
	k.conn.Raw(hangUp)
	pinned.Discard(k.conn)
}
