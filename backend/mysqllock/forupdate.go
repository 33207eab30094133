package mysqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/connlock"
)

// forUpdateDialect is the strategy ForUpdate: a row that an open transaction locks. The number is in
// another row, since the transaction's writes may be rolled back.
type forUpdateDialect struct{ connDialect }

// forUpdateBackend also commits the caller's work.
type forUpdateBackend struct{ *connlock.Backend }

func newForUpdate(ctx context.Context, s *database) (strategy, error) {
	d := &forUpdateDialect{newConnDialect(s)}
	b, err := d.open(ctx, d, true)
	if err != nil {
		return nil, err
	}
	return forUpdateBackend{b}, nil
}

// NewConn prepares a connection for a lock. READ COMMITTED locks no gaps. With autocommit off,
// statements that follow the end of the transaction are not committed.
func (d *forUpdateDialect) NewConn(ctx context.Context, conn *sql.Conn, lease time.Duration) (connlock.Conn, error) {
	k, err := d.newLockConn(ctx, conn, lease, "autocommit = 0, "+d.server.isolation("READ-COMMITTED")+", "+usualWaits)
	return &forUpdateConn{lockConn: k}, err
}

// KillHolder ends the connection of a holder. A release removes the owner from the row, so an owner in
// the row holds the lock, or its connection has died. A commit leaves the owner in the row: its process
// does not call KillHolder for that owner.
func (d *forUpdateDialect) KillHolder(ctx context.Context, l connlock.Lock) (bool, error) {
	return d.evict(ctx, l, func(mark string) string { return threadOf(mark) + " IS NOT NULL" })
}

type forUpdateConn struct {
	lockConn
	used bool // the caller's work has had the transaction, and may have changed settings
}

// noWait ends a statement that must not wait for rows. MySQL has it from version 8 on.
func (s server) noWait() string {
	if s.mariaDB || s.major >= 8 {
		return " NOWAIT"
	}
	return ""
}

// TryLock tries to take the lock. If it is refused, the transaction stays open for the next attempt.
func (k *forUpdateConn) TryLock(ctx context.Context, l connlock.Lock) (number uint64, ok bool, err error) {
	if k.c.server.noWait() == "" {
		if err := k.exec(ctx, "SET SESSION innodb_lock_wait_timeout = 1"); err != nil {
			return 0, false, err
		}
	}
	ok, err = k.take(ctx, l, k.c.server.noWait())
	if ok && err == nil && k.c.server.noWait() == "" {
		err = k.resetTimeout(ctx)
	}
	return 0, ok && err == nil, err
}

// resetTimeout lets the caller's work wait for rows as usual.
func (k *forUpdateConn) resetTimeout(ctx context.Context) error {
	return k.exec(ctx, "SET SESSION "+usualWaits)
}

// usualWaits lets statements wait for rows and tables as the server says.
const usualWaits = "innodb_lock_wait_timeout = DEFAULT, lock_wait_timeout = DEFAULT"

// take locks the row, and inserts it first if it is missing.
func (k *forUpdateConn) take(ctx context.Context, l connlock.Lock, how string) (bool, error) {
	ok, err := k.lock(ctx, l, how)
	if noRows(err) {
		if err = k.makeRow(ctx, l); err == nil {
			ok, err = k.lock(ctx, l, how)
		}
	}
	if n := number(err); n == errLockWait || n == errNoWait {
		return false, nil
	}
	return ok, err
}

func (k *forUpdateConn) lock(ctx context.Context, l connlock.Lock, how string) (bool, error) {
	tx, err := k.tx.Begin(ctx)
	if err != nil {
		return false, err
	}
	return queryBool(ctx, tx, "SELECT 1 FROM "+k.c.table+" WHERE k = "+k.c.lockKey(l)+" FOR UPDATE"+how)
}

// makeRow inserts the row to be locked. If another client has just inserted and locked it, makeRow
// waits as briefly as all servers allow.
func (k *forUpdateConn) makeRow(ctx context.Context, l connlock.Lock) error {
	err := k.exec(ctx, "SET @distlock_wait = @@SESSION.innodb_lock_wait_timeout, SESSION innodb_lock_wait_timeout = 1")
	if err != nil {
		return err
	}
	err = k.exec(ctx, "INSERT IGNORE INTO "+k.c.table+" (k, name, number, owner, link, since, meta) VALUES ("+k.c.lockKey(l)+", "+literal(l.Name)+", 0, X'', 0, 0, X'')")
	if as := k.exec(ctx, "SET SESSION innodb_lock_wait_timeout = @distlock_wait"); err == nil {
		err = as
	}
	if err != nil {
		return err
	}
	return k.end(ctx, "COMMIT")
}

// WaitLock waits in the server, for whole seconds. A wait that is killed returns an error.
func (k *forUpdateConn) WaitLock(ctx context.Context, l connlock.Lock, slice time.Duration) (bool, error) {
	seconds := max(1, int(slice/time.Second))
	if err := k.exec(ctx, fmt.Sprintf("SET SESSION innodb_lock_wait_timeout = %d, lock_wait_timeout = %d", seconds, seconds)); err != nil {
		return false, err
	}
	ok, err := k.take(ctx, l, "")
	if err == nil {
		err = k.resetTimeout(ctx)
	}
	return ok && err == nil, err
}

// Number leaves it to another connection.
func (k *forUpdateConn) Number(context.Context, connlock.Lock) (uint64, error) { return 0, nil }

func (k *forUpdateConn) Confirm(ctx context.Context) error { return k.exec(ctx, "SAVEPOINT "+whole) }

// whole is the savepoint of a transaction that has its lock. It ends with the lock: MySQL rolls a
// deadlock's victim back, and later statements begin a transaction without either.
const whole = "distlock_whole"

// end ends the transaction by a statement, which ctx can interrupt. The next statement begins
// another one, since autocommit is off.
func (k *forUpdateConn) end(ctx context.Context, how string) error { return k.exec(ctx, how) }

// clearTime bounds the wait for a row that another client keeps locked.
const clearTime = time.Second

// Unlock first removes the owner from the row, for KillHolder. If it can't, it takes another mark, because the row says that
// the owner holds the lock on this connection.
func (k *forUpdateConn) Unlock(ctx context.Context, l connlock.Lock) error {
	if l.Probe {
		if err := k.end(ctx, "ROLLBACK"); err != nil {
			return err
		}
		_, err := k.c.db.ExecContext(ctx, "DELETE FROM "+k.c.table+" WHERE k = "+k.c.lockKey(l))
		return err
	}
	soon, cancel := context.WithTimeout(ctx, clearTime)
	defer cancel()
	_, cause := k.c.db.ExecContext(soon, "UPDATE "+k.c.table+" SET owner = '' WHERE k = "+k.c.rowKey(l)+" AND owner = "+literal(l.Owner))
	err := k.end(ctx, "ROLLBACK")
	if err == nil && cause != nil {
		mark := newMark()
		err = k.exec(ctx, "SET @distlock_mark = GET_LOCK("+markLock(mark)+", 0) + RELEASE_LOCK("+markLock(k.mark)+")")
		k.mark = mark
	}
	return err
}

func (k *forUpdateConn) Tx() *sql.Tx {
	k.used = true
	return k.tx.Current()
}

// Alive gives up a connection that the caller's work has had.
func (k *forUpdateConn) Alive() error {
	if k.used {
		return errors.New("the caller's work has had the connection")
	}
	return k.lockConn.Alive()
}

func (k *forUpdateConn) Rollback(ctx context.Context) error { return k.end(ctx, "ROLLBACK") }

func (k *forUpdateConn) Commit(ctx context.Context) error {
	err := k.exec(ctx, "RELEASE SAVEPOINT "+whole)
	if number(err) == errNoSavepoint {
		return fmt.Errorf("%w: a deadlock had rolled the work's transaction back, or it was ended by the work: %w", driver.ErrLost, err)
	}
	if err != nil {
		return err
	}
	return k.end(ctx, "COMMIT")
}

func (k *forUpdateConn) Close() { k.tx.Close() }
