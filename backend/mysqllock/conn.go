package mysqllock

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/connlock"
	"github.com/distlock/distlock/internal/wait"
)

// Numbers of the server's errors about connections.
const (
	errNoThread    = 1094
	errNoSavepoint = 1305
	errInterrupted = 1317
	errShutdown    = 1053
	errKilled      = 1927
	errNoWait      = 3572 // MySQL's NOWAIT
)

// connDialect implements connlock's dialect for the strategies Session and ForUpdate.
type connDialect struct {
	*database
	table string // quoted
	inTx  bool   // ForUpdate: a row that an open transaction locks
}

// connTable is the table of Session and ForUpdate.
func connTable(o Options) tableSpec {
	about := "strategy session: the numbers of grants; the locks are in the server's memory."
	if o.Strategy == ForUpdate {
		about = "strategy forupdate: two rows for each, one that is locked, and one with the number of grants."
	}
	return tableSpec{table: o.Table, about: about, columns: []columnSpec{
		{name: "k", ddl: "VARBINARY(64) NOT NULL", note: "SHA-256 of the table's and the lock's name"},
		{name: "name", ddl: "MEDIUMBLOB NOT NULL"},
		{name: "number", ddl: "BIGINT NOT NULL", note: "of the last grant; its fence is 1024 times that"},
		{name: "owner", ddl: "VARBINARY(64) NOT NULL", note: "of the last grant"},
	}}
}

func newOnConnections(ctx context.Context, s *database) (strategy, error) {
	d := &connDialect{database: s, table: s.quoted(s.opts.Table), inTx: s.opts.Strategy == ForUpdate}
	if err := d.prepare(ctx); err != nil {
		return nil, err
	}
	// The server of a SELECT that takes a lock must be the one that other clients use.
	if err := d.checkReads(ctx, d.opts.Table, "k"); err != nil {
		return nil, err
	}
	b, err := connlock.New(connlock.Config{DB: d.pool, Dialect: d, Package: "mysqllock", Name: s.name, InTx: d.inTx, Explain: func(err error) error { return err }})
	if err != nil {
		return nil, err
	}
	return b, nil
}

// key returns a lock's key in its rows and for GET_LOCK, which has room for 64 characters and may
// ignore case. The table's full name is a part of it: two tables are two sets of locks. The server's name is none, since
// clients that opened before and after a failover must exclude each other.
func (d *connDialect) key(name string) string {
	sum := sha256.Sum256([]byte("distlock\x00" + d.fullTable + "\x00" + name))
	return hex.EncodeToString(sum[:])
}

// NewConn sets and marks a connection. A shorter timeout of the server would end holds early. What is not set stays the
// caller's, whose work may run on the connection.
func (d *connDialect) NewConn(ctx context.Context, conn *sql.Conn, lease time.Duration) (connlock.Conn, error) {
	k := &lockConn{d: d, conn: conn, q: conn, mark: strconv.FormatInt(rand.Int64(), 10)}
	autocommit, level := 1, "REPEATABLE-READ"
	if d.inTx { // READ COMMITTED locks no gaps. Without autocommit what follows the end of the transaction is not committed
		autocommit, level = 0, "READ-COMMITTED"
	}
	if err := k.exec(ctx, fmt.Sprintf(lockConnSQL, autocommit, level)+", "+shortWaits+", "+waitTimeout(lease)); err != nil {
		return nil, err
	}
	if d.lent != nil {
		if err := k.exec(ctx, rollback); err != nil {
			return nil, err
		}
	}
	if err := conn.QueryRowContext(ctx, "SELECT IF(GET_LOCK("+markLock(k.mark)+", 0) = 1, CONNECTION_ID(), NULL)").Scan(&k.thread); err != nil {
		return nil, fmt.Errorf("mark the connection: %w", err)
	}
	if d.inTx {
		return newForUpdate(ctx, k)
	}
	return &sessionConn{k}, nil
}

const (
	lockConnSQL = "SET SESSION completion_type = 0, sql_select_limit = 18446744073709551615, autocommit = %[1]d" +
		" /*!50720 , transaction_isolation = '%[2]s', max_execution_time = 0, transaction_read_only = 0 */ /*M!100600 , tx_isolation = '%[2]s'" +
		", max_statement_time = 0, tx_read_only = 0, idle_transaction_timeout = 0, idle_readonly_transaction_timeout = 0, idle_write_transaction_timeout = 0 */"

	shortWaits = "innodb_lock_wait_timeout = 1, lock_wait_timeout = 1" // for rows and tables, as brief as all servers allow
)

// waitTimeout sets the silence after which the server ends the connection, in whole seconds.
func waitTimeout(lease time.Duration) string {
	return "wait_timeout = " + strconv.FormatInt(int64((lease+time.Second-1)/time.Second), 10)
}

// markLock returns the user-level lock that marks a connection as long as it lives. The server's own
// number of a connection is reused after a restart, and may be hidden from other users.
func markLock(mark string) string { return "'distlock-link/" + mark + "'" }

// Kill ends the connection that has a mark.
func (d *connDialect) Kill(ctx context.Context, mark string) error {
	var thread sql.NullString
	err := d.db.QueryRowContext(ctx, "SELECT IS_USED_LOCK("+markLock(mark)+")").Scan(&thread)
	for err == nil && thread.Valid {
		if _, err = d.db.ExecContext(ctx, "KILL "+thread.String); number(err) == errNoThread {
			return nil
		}
		if err == nil {
			err = wait.Sleep(ctx, time.Millisecond)
		}
	}
	return err
}

// CommitRefused reports whether the server refused the commit, rather than ended the connection.
func (d *connDialect) CommitRefused(err error) bool {
	switch number(err) {
	case 0, errInterrupted, errShutdown, errKilled:
		return false
	}
	return true
}

// nextNumber writes a lock's next number, and its owner.
func (d *connDialect) nextNumber(ctx context.Context, q querier, l connlock.Lock) (next uint64, err error) {
	owner := literal(l.Owner)
	text := "INSERT INTO " + d.table + " (k, name, number, owner) VALUES ('" + d.key(l.Name) + "', " + literal(l.Name) + ", LAST_INSERT_ID(" + clockSQL + "), " + owner +
		") ON DUPLICATE KEY UPDATE number = LAST_INSERT_ID(GREATEST(number + 1, " + clockSQL + ")), owner = " + owner
	if err := d.fits(len(text)); err != nil {
		return 0, err
	}
	err = retryUndone(ctx, func() error {
		_, id, err := changed(q.ExecContext(ctx, text))
		next = uint64(id)
		if number(err) == errLockWait {
			err = fmt.Errorf("the row of its number is locked: %s", err) // another try would keep the lock from being renewed
		}
		return err
	})
	return next, err
}

// querier is a connection, a transaction or a pool.
type querier = connlock.Querier

// lockConn is a connection that has a lock.
type lockConn struct {
	d      *connDialect
	conn   *sql.Conn
	q      querier // the connection, or the transaction that is open on it
	mark   string
	thread string // the server's number of it
}

func (k *lockConn) exec(ctx context.Context, text string) error {
	_, err := k.q.ExecContext(ctx, text)
	return err
}

// ID returns the connection's mark.
func (k *lockConn) ID() string { return k.mark }

// Lease sets the silence after which the server ends the connection.
func (k *lockConn) Lease(ctx context.Context, lease time.Duration) error {
	return k.exec(ctx, "SET SESSION "+waitTimeout(lease))
}

// Ping wants the session with the mark: a proxy may have connected to another one.
func (k *lockConn) Ping(ctx context.Context) error {
	same, err := queryBool(ctx, k.q, "SELECT COALESCE(IS_USED_LOCK("+markLock(k.mark)+") = CONNECTION_ID(), 0)")
	if err == nil && !same {
		err = errAnother
	}
	return err
}

var errAnother = errors.New("another session of the server answers on the connection: a proxy in between does not keep sessions apart")

// Alive checks the connection, like a pool that reuses one.
func (k *lockConn) Alive() error { return connected(k.conn) }

// Close closes the connection.
func (k *lockConn) Close() error { return connlock.Discard(k.conn) }

// queryBool runs a query for one number, and reports whether it is 1. NULL is an error.
func queryBool(ctx context.Context, q querier, text string) (bool, error) {
	var n sql.NullInt64
	err := q.QueryRowContext(ctx, text).Scan(&n)
	if err == nil && !n.Valid {
		err = errAnother
	}
	return n.Int64 == 1, err
}

// sessionConn is a connection that has a lock by GET_LOCK.
type sessionConn struct{ *lockConn }

// get asks for the lock, if the session is the one that NewConn has prepared, and waits for it.
func (k *sessionConn) get(ctx context.Context, l connlock.Lock, seconds int) (bool, error) {
	return queryBool(ctx, k.q, fmt.Sprintf("SELECT IF(CONNECTION_ID() = %s, GET_LOCK('%s', %d), NULL)", k.thread, k.d.key(l.Name), seconds))
}

// TryLock tries to take the lock, and then writes its number.
func (k *sessionConn) TryLock(ctx context.Context, l connlock.Lock) (number uint64, ok bool, err error) {
	if ok, err = k.get(ctx, l, 0); ok && err == nil {
		number, err = k.Number(ctx, l)
	}
	return number, ok, err
}

func (k *sessionConn) WaitLock(ctx context.Context, l connlock.Lock, slice time.Duration) (bool, error) {
	return k.get(ctx, l, int(slice/time.Second))
}

func (k *sessionConn) Number(ctx context.Context, l connlock.Lock) (uint64, error) {
	return k.d.nextNumber(ctx, k.q, l)
}

func (k *sessionConn) Unlock(ctx context.Context, l connlock.Lock) error {
	had, err := queryBool(ctx, k.q, "SELECT COALESCE(RELEASE_LOCK('"+k.d.key(l.Name)+"'), 0)") // NULL: no session has it
	if err == nil && !had {
		err = fmt.Errorf("%w: the server does not know of the lock", driver.ErrLost)
	}
	return err
}
