package pglock

import (
	"context"
	"database/sql"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/connlock"
)

// txConn is a connection with the lock of its transaction. Numbers are written by other
// connections: what the transaction writes ends with it.
type txConn struct {
	sessionConn
	has bool // the transaction has the lock
}

func (k *txConn) Ping(ctx context.Context) error { return k.exec(ctx, "SELECT 1") }

// Lease is for the connection: a transaction that has nothing, and would take it back at its end, is
// ended before. One that has the lock keeps it for as long as that.
func (k *txConn) Lease(ctx context.Context, lease time.Duration) error {
	if !k.has {
		if err := k.finish(ctx, (*sql.Tx).Rollback); err != nil {
			return err
		}
	}
	return k.sessionConn.Lease(ctx, lease)
}

func (k *txConn) finish(ctx context.Context, end func(*sql.Tx) error) error {
	k.has = false
	return k.tx.Finish(ctx, end)
}

// TryLock leaves the transaction open if the lock is refused: the next attempt uses it.
func (k *txConn) TryLock(ctx context.Context, l connlock.Lock) (number uint64, ok bool, err error) {
	tx, err := k.tx.Begin(ctx)
	if err != nil {
		return 0, false, err
	}
	err = tx.QueryRowContext(ctx, "SELECT pg_try_advisory_xact_lock($1::bigint)", l.Key).Scan(&ok)
	k.has = k.has || ok
	return 0, ok, err
}

// Number is not called: what the transaction writes ends with it.
func (k *txConn) Number(context.Context, connlock.Lock) (uint64, error) {
	return 0, driver.ErrUnsupported
}

// WaitLock leaves the settings as the caller's work expects them.
func (k *txConn) WaitLock(ctx context.Context, l connlock.Lock, slice time.Duration) (bool, error) {
	tx, err := k.tx.Begin(ctx)
	if err != nil {
		return false, err
	}
	const after = "; SET LOCAL statement_timeout TO DEFAULT; SET LOCAL lock_timeout TO DEFAULT"
	_, err = tx.ExecContext(ctx, waiting(slice)+"SELECT pg_advisory_xact_lock("+l.Key+")"+after)
	if sqlState(err) == lockTimeout {
		return false, k.Undo(ctx, l)
	}
	k.has = err == nil
	return k.has, err
}

func (k *txConn) Undo(ctx context.Context, _ connlock.Lock) error {
	if err := k.finish(ctx, (*sql.Tx).Rollback); err != nil {
		return err
	}
	return k.Ping(ctx)
}

// Unlock leaves an empty transaction for the next attempt, which saves that a round trip.
func (k *txConn) Unlock(ctx context.Context, _ connlock.Lock) error {
	k.has = false
	return k.exec(ctx, "ROLLBACK AND CHAIN")
}

func (k *txConn) Tx() *sql.Tx { return k.tx.Current() }

func (k *txConn) Commit(ctx context.Context) error { return k.finish(ctx, (*sql.Tx).Commit) }
