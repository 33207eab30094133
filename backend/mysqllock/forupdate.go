package mysqllock

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/connlock"
)

// forUpdateConn is a connection whose transaction has locked a row. The number is in another row, and written through another
// connection, since the transaction's writes may be rolled back.
type forUpdateConn struct {
	*lockConn
	tx *sql.Tx // of all transactions: autocommit is off, so the statement after the end of one begins the next
}

func newForUpdate(ctx context.Context, k *lockConn) (connlock.Conn, error) {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer context.AfterFunc(ctx, cancel)()
	tx, err := k.conn.BeginTx(own, nil)
	k.q = tx // a statement sent through the connection that finds it broken would wait for the end of the transaction
	return &forUpdateConn{k, tx}, err
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
	if ok, err = k.take(ctx, l, k.d.server.noWait()); ok && err == nil {
		number, err = k.Number(ctx, l)
	}
	return number, ok, err
}

// take locks the row, and inserts it first if it is missing.
func (k *forUpdateConn) take(ctx context.Context, l connlock.Lock, how string) (bool, error) {
	key := "'#" + k.d.key(l.Name)[1:] + "'"
	lock := "SELECT 1 FROM " + k.d.table + " WHERE k = " + key + " FOR UPDATE" + how
	ok, err := queryBool(ctx, k.q, lock)
	if noRows(err) {
		text := "INSERT IGNORE INTO " + k.d.table + " (k, name, number, owner) VALUES (" + key + ", " + literal(l.Name) + ", 0, X'')"
		if err = k.d.fits(len(text)); err == nil {
			_, err = k.d.db.ExecContext(ctx, text)
		}
		if err != nil {
			err = fmt.Errorf("the row of a lock, which another connection writes: %w", err)
		} else {
			ok, err = queryBool(ctx, k.q, lock)
		}
	}
	if n := number(err); n == errLockWait || n == errNoWait {
		return false, nil
	}
	return ok, err
}

// WaitLock waits in the server, for whole seconds.
func (k *forUpdateConn) WaitLock(ctx context.Context, l connlock.Lock, slice time.Duration) (bool, error) {
	seconds := int(slice / time.Second)
	if err := k.exec(ctx, fmt.Sprintf("SET SESSION innodb_lock_wait_timeout = %d, lock_wait_timeout = %d", seconds, seconds)); err != nil {
		return false, err
	}
	ok, err := k.take(ctx, l, "")
	if err == nil {
		err = k.exec(ctx, "SET SESSION "+shortWaits)
	}
	return ok, err
}

// Number writes the number, which may take as long as its row is locked. If the connection answers afterwards, it has the lock,
// and no successor has got a smaller number.
func (k *forUpdateConn) Number(ctx context.Context, l connlock.Lock) (uint64, error) {
	number, err := k.d.nextNumber(ctx, k.d.db, l)
	if err != nil {
		return 0, fmt.Errorf("the number of a lock, which another connection writes: %w", err)
	}
	return number, k.Ping(ctx)
}

func (k *forUpdateConn) Unlock(ctx context.Context, _ connlock.Lock) error { return k.Rollback(ctx) }

// whole is the savepoint of a transaction that has its lock. It ends with the lock: MySQL rolls a
// deadlock's victim back, and later statements begin a transaction without either.
const whole = "distlock_whole"

// Begin lets the caller's work wait for rows and tables as the server says.
func (k *forUpdateConn) Begin(ctx context.Context) (*sql.Tx, error) {
	err := k.exec(ctx, "SET SESSION innodb_lock_wait_timeout = DEFAULT, lock_wait_timeout = DEFAULT")
	if err == nil {
		err = k.exec(ctx, "SAVEPOINT "+whole)
	}
	return k.tx, err
}

func (k *forUpdateConn) Commit(ctx context.Context) error {
	err := k.exec(ctx, "RELEASE SAVEPOINT "+whole)
	if number(err) == errNoSavepoint {
		return fmt.Errorf("%w: a deadlock had rolled the work's transaction back, or it was ended by the work: %w", driver.ErrLost, err)
	}
	if err != nil {
		return err
	}
	return k.exec(ctx, "COMMIT")
}

func (k *forUpdateConn) Rollback(ctx context.Context) error { return k.exec(ctx, "ROLLBACK") }

func (k *forUpdateConn) Close() error {
	connlock.HangUp(k.conn) // database/sql can't close it before the transaction has ended
	k.tx.Rollback()
	return k.lockConn.Close()
}
