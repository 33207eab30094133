package pglock

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/connlock"
	"github.com/jackc/pgx/v5/stdlib"
)

// sessionConn is a connection with locks of its session.
type sessionConn struct {
	d      *advisoryDialect
	tx     connlock.Tx
	id     string
	closed bool // it stays in an empty transaction between statements
	inTx   bool
}

func (k *sessionConn) ID() string { return k.id }

// rowTime is for how long a statement of a link waits for a row or table that somebody keeps
// locked. The other locks of the link can't be renewed meanwhile.
const rowTime = 50 * time.Millisecond

// settings let the server notice soon that a waiting client has died, and don't let it end
// a long transaction.
func (k *sessionConn) settings(ctx context.Context) error {
	text := "SET default_transaction_isolation = 'read committed'"
	if !k.d.solo { // the caller's work may wait
		text += fmt.Sprintf("; SET lock_timeout = %d", rowTime.Milliseconds())
	}
	if k.d.version >= 140000 {
		text += "; SET client_connection_check_interval = 1000"
	}
	if k.d.version >= 170000 {
		text += "; SET transaction_timeout = 0"
	}
	return k.exec(ctx, text)
}

func (k *sessionConn) exec(ctx context.Context, text string) error {
	return k.tx.Exec(ctx, text)
}

// Lease: the timeout is for whole ms. A transaction that is rolled back would take it back.
func (k *sessionConn) Lease(ctx context.Context, lease time.Duration) error {
	ms := (lease + time.Millisecond - 1) / time.Millisecond
	text := fmt.Sprintf("SET idle_in_transaction_session_timeout = %d", ms)
	if k.d.version >= 140000 {
		text += fmt.Sprintf("; SET idle_session_timeout = %d", ms)
	}
	if k.inTx {
		text += "; COMMIT AND CHAIN"
	}
	return k.exec(ctx, text)
}

// Ping also begins a new empty transaction, if the last one has ended with an error.
func (k *sessionConn) Ping(ctx context.Context) error {
	if k.closed && !k.inTx {
		return k.idle(ctx)
	}
	return k.exec(ctx, "SELECT 1")
}

// idle leaves the connection as it is between statements.
func (k *sessionConn) idle(ctx context.Context) error {
	if !k.closed || k.inTx {
		return nil
	}
	err := k.exec(ctx, "BEGIN ISOLATION LEVEL READ COMMITTED")
	k.inTx = err == nil
	return err
}

// Alive sees what the server has sent unasked, such as that it has closed the connection.
func (k *sessionConn) Alive() error {
	return k.tx.Raw(func(raw any) error {
		c, ok := raw.(*stdlib.Conn)
		if !ok || canPeek && socketAlive(c.Conn().PgConn().Conn()) {
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

// TryLock tries, and writes the number in the same statement. In an empty transaction it would be
// undone with that. Whether a statement that found the row locked has taken the lock is not known.
func (k *sessionConn) TryLock(ctx context.Context, l connlock.Lock) (number uint64, ok bool, err error) {
	if l.SeparateNumber || l.Probe {
		ok, err = k.try(ctx, l)
		return 0, ok, err
	}
	args, err := k.d.row(l, k.id)
	if err != nil {
		return 0, false, err
	}
	err = k.tx.Querier().QueryRowContext(ctx, k.d.take, append(args, l.Key)...).Scan(&ok, &number)
	if sqlState(err) != lockTimeout {
		return number, ok, err
	}
	if err = k.Undo(ctx, l); err == nil {
		ok, err = k.try(ctx, l)
	}
	return 0, ok, err
}

func (k *sessionConn) try(ctx context.Context, l connlock.Lock) (ok bool, err error) {
	err = k.tx.Querier().QueryRowContext(ctx, "SELECT pg_try_advisory_lock($1::bigint)", l.Key).Scan(&ok)
	return ok, err
}

// querier is a connection, a transaction or a pool.
type querier = connlock.Querier

// Number writes on the lock's own connection. 0: somebody keeps the row locked.
func (k *sessionConn) Number(ctx context.Context, l connlock.Lock) (uint64, error) {
	number, err := k.d.next(ctx, k.tx.Querier(), l, k.id)
	if sqlState(err) == lockTimeout {
		return 0, nil
	}
	return number, err
}

// Confirm: a link that answers has its locks.
func (k *sessionConn) Confirm(ctx context.Context, _ connlock.Lock) error { return k.Ping(ctx) }

// WaitLock waits for the lock of a transaction, and then takes that of the session, which it is
// certain to get. An error while waiting leaves nothing after the rollback; pg_advisory_lock
// may report one and have the lock all the same.
func (k *sessionConn) WaitLock(ctx context.Context, l connlock.Lock, slice time.Duration) (bool, error) {
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
	if sqlState(err) != lockTimeout {
		return false, err
	}
	return false, k.rollBack(ctx)
}

// waiting are the settings of a wait. An user's own shorter timeouts are for other statements.
func waiting(slice time.Duration) string {
	return fmt.Sprintf("SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = %d; ", slice.Milliseconds())
}

func (k *sessionConn) rollBack(ctx context.Context) error {
	err := k.exec(ctx, "ROLLBACK")
	if err == nil {
		k.inTx = false
		err = k.idle(ctx)
	}
	return err
}

// Undo looks whether the session has the lock: to give back what it doesn't have would be a
// warning in the server's log.
func (k *sessionConn) Undo(ctx context.Context, l connlock.Lock) error {
	if k.inTx {
		if err := k.rollBack(ctx); err != nil {
			return err
		}
	}
	return k.exec(ctx, `SELECT pg_advisory_unlock(`+l.Key+`) FROM pg_locks WHERE pid = pg_backend_pid() AND `+thisLock(l))
}

// Unlock: the server says whether it was held.
func (k *sessionConn) Unlock(ctx context.Context, l connlock.Lock) error {
	var had bool
	err := k.tx.Querier().QueryRowContext(ctx, "SELECT pg_advisory_unlock($1::bigint)", l.Key).Scan(&had)
	if err == nil && !had {
		err = fmt.Errorf("%w: the server does not know of the lock", driver.ErrLost)
	}
	return err
}

func (k *sessionConn) Tx() *sql.Tx { return nil }

func (k *sessionConn) Commit(context.Context) error { return driver.ErrUnsupported }

func (k *sessionConn) Close() {
	k.tx.Raw(hangUp)
	k.tx.Close()
}
