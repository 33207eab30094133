package mysqllock

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	sqldriver "database/sql/driver"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/connlock"
	"github.com/distlock/distlock/internal/metajson"
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

// connDialect is the part that the strategies Session and ForUpdate share. Package connlock uses its
// connections.
type connDialect struct {
	*database
	table     string // quoted
	meta      metajson.Cache
	numbering chan struct{} // has an entry for each statement of Number: they would pile up while the table is locked
}

// maxNumbering is how many numbers are written at once.
const maxNumbering = 16

func newConnDialect(s *database) connDialect {
	return connDialect{database: s, table: s.quoted(s.opts.Table), numbering: make(chan struct{}, maxNumbering)}
}

// hash returns a lock's key in its rows and for GET_LOCK, which has room for 64 characters and may
// ignore case. The table's full name is a part of it: two tables are two sets of locks. The server's name is none, since
// clients that opened before and after a failover must exclude each other.
func (c *connDialect) hash(name string) string {
	sum := sha256.Sum256([]byte("distlock\x00" + c.fullTable + "\x00" + name))
	return hex.EncodeToString(sum[:])
}

// Key returns the hash.
func (c *connDialect) Key(name string) string { return c.hash(name) }

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
		{name: "link", ddl: "BIGINT NOT NULL", note: "the mark of the connection that has it"},
		{name: "since", ddl: "BIGINT NOT NULL"},
		{name: "meta", ddl: "MEDIUMBLOB NOT NULL", note: "JSON"},
	}}
}

// open returns a backend for a dialect.
func (c *connDialect) open(ctx context.Context, d connlock.Dialect, joins bool) (*connlock.Backend, error) {
	if err := c.prepare(ctx); err != nil {
		return nil, openError(c.opts, err)
	}
	// The server of a SELECT that takes a lock must be the one that other clients use.
	if err := c.checkReads(ctx, c.opts.Table, "k"); err != nil {
		return nil, openError(c.opts, err)
	}
	return connlock.New(ctx, connlock.Config{DB: c.pool, Dialect: d, Package: "mysqllock", Name: c.database.name, Joins: joins})
}

// Kill ends the connection that has a mark.
func (c *connDialect) Kill(ctx context.Context, mark string) error {
	return c.killMarked(ctx, c.db, mark)
}

// killMarked is Kill through q. It waits until the server does not list the connection any more.
func (c *connDialect) killMarked(ctx context.Context, q querier, mark string) error {
	var thread sql.NullString
	err := q.QueryRowContext(ctx, "SELECT "+threadOf(mark)).Scan(&thread)
	if err != nil || !thread.Valid {
		return err
	}
	if _, err := q.ExecContext(ctx, "KILL "+thread.String); err != nil && number(err) != errNoThread {
		return err
	}
	for {
		lives, err := queryBool(ctx, q, "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE ID = "+thread.String)
		if err != nil || !lives {
			return err
		}
		if err := wait.Sleep(ctx, time.Millisecond); err != nil {
			return fmt.Errorf("connection %s has not ended yet: %w", thread.String, err)
		}
	}
}

// querier is a connection, a transaction or a pool.
type querier = connlock.Querier

// markLock returns the user-level lock that marks a connection as long as it lives. The server's own
// number of a connection is reused after a restart, and may be hidden from other users.
func markLock(mark string) string { return "'distlock-link/" + mark + "'" }

// threadOf returns an expression for the number of the connection that has a mark. It is NULL when
// the connection has ended.
func threadOf(mark string) string { return "IS_USED_LOCK(" + markLock(mark) + ")" }

// evict ends the connection that holds the lock for its Owner. The row is locked meanwhile, and a
// successor has to write it before it holds the lock. has is a condition on the connection's mark.
func (c *connDialect) evict(ctx context.Context, l connlock.Lock, has func(mark string) string) (bool, error) {
	tx, err := c.db.BeginTx(ctx, nil)
	if err != nil {
		return false, unchanged(err)
	}
	defer tx.Rollback()
	var mark string
	err = tx.QueryRowContext(ctx, "SELECT link FROM "+c.table+" WHERE k = "+c.rowKey(l)+" AND owner = "+literal(l.Owner)+" FOR UPDATE").Scan(&mark)
	if noRows(err) {
		return false, nil
	}
	if err != nil {
		return false, unchanged(err)
	}
	if is, err := queryBool(ctx, tx, "SELECT "+has(mark)); err != nil || !is {
		return false, err
	}
	return true, c.killMarked(ctx, tx, mark)
}

// rowKey returns the key of the row with a lock's number.
func (c *connDialect) rowKey(l connlock.Lock) string { return "'" + c.hash(l.Name) + "'" }

// lockKey returns the key of a row that is only locked.
func (c *connDialect) lockKey(l connlock.Lock) string { return "'#" + c.hash(l.Name)[1:] + "'" }

// CommitRefused reports whether the server refused the commit, rather than ended the connection.
func (c *connDialect) CommitRefused(err error) bool {
	switch number(err) {
	case 0, errInterrupted, errShutdown, errKilled:
		return false
	}
	return true
}

// Number writes a lock's next number for a connection.
func (c *connDialect) Number(ctx context.Context, l connlock.Lock, mark string) (number uint64, err error) {
	select {
	case c.numbering <- struct{}{}:
		defer func() { <-c.numbering }()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	err = retryUndone(ctx, func() error {
		number, err = c.nextNumber(ctx, c.db, l, mark)
		return err
	})
	return number, err
}

// nextNumber writes a lock's next number, and its owner.
func (c *connDialect) nextNumber(ctx context.Context, q querier, l connlock.Lock, mark string) (uint64, error) {
	owner, about := literal(l.Owner), literal(cmp.Or(c.meta.Encode(l.Meta), "{}"))
	text := "INSERT INTO " + c.table + " (k, name, number, owner, link, since, meta) VALUES (" +
		c.rowKey(l) + ", " + literal(l.Name) + ", LAST_INSERT_ID(" + clockSQL + "), " + owner + ", " + mark + ", " + clockSQL + ", " + about +
		") ON DUPLICATE KEY UPDATE number = LAST_INSERT_ID(GREATEST(number + 1, " + clockSQL +
		")), owner = " + owner + ", link = " + mark + ", since = " + clockSQL + ", meta = " + about
	if err := c.fits(len(text)); err != nil {
		return 0, err
	}
	_, number, err := changed(q.ExecContext(ctx, text))
	return uint64(number), err
}

// lockConn is a connection that has locks.
type lockConn struct {
	c        *connDialect
	tx       connlock.Tx
	mark     string
	lease    time.Duration
	settings string // assignments of the strategy
}

// lockConnSQL sets a connection that keeps locks. A shorter timeout of the server would end holds early. The rest of the
// session stays the caller's, whose work it runs in Commit.
const lockConnSQL = "SET SESSION completion_type = 0, sql_select_limit = 18446744073709551615 /*!50720 , max_execution_time = 0, transaction_read_only = 0 */" +
	" /*M!100600 , max_statement_time = 0, tx_read_only = 0, idle_transaction_timeout = 0, idle_readonly_transaction_timeout = 0, idle_write_transaction_timeout = 0 */"

// newLockConn sets and marks a connection, and lets the server end it when it is silent for too long. settings are
// assignments of the strategy.
func (c *connDialect) newLockConn(ctx context.Context, conn *sql.Conn, lease time.Duration, settings string) (lockConn, error) {
	k := lockConn{c: c, tx: connlock.Tx{Conn: conn}, mark: newMark(), lease: lease, settings: settings}
	if err := k.set(ctx); err != nil {
		return k, err
	}
	if c.lent != nil {
		if err := k.exec(ctx, rollback); err != nil {
			return k, err
		}
	}
	got, err := queryBool(ctx, conn, "SELECT GET_LOCK("+markLock(k.mark)+", 0)")
	if err == nil && !got {
		err = errors.New("a new user-level lock is held by another session")
	}
	return k, err
}

func (k *lockConn) set(ctx context.Context) error {
	return k.exec(ctx, lockConnSQL+", "+waitTimeout(k.lease)+", "+k.settings)
}

// waitTimeout sets the silence after which the server ends the connection, in whole seconds.
func waitTimeout(lease time.Duration) string {
	return "wait_timeout = " + strconv.FormatInt(int64((lease+time.Second-1)/time.Second), 10)
}

// isolation sets the level of the session's transactions.
func (s server) isolation(level string) string {
	if s.mariaDB || s.major < 8 {
		return "tx_isolation = '" + level + "'"
	}
	return "transaction_isolation = '" + level + "'"
}

func newMark() string { return strconv.FormatInt(rand.Int64(), 10) }

func (k *lockConn) exec(ctx context.Context, text string) error { return k.tx.Exec(ctx, text) }

// ID returns the connection's mark.
func (k *lockConn) ID() string { return k.mark }

// Lease sets the silence after which the server ends the connection.
func (k *lockConn) Lease(ctx context.Context, lease time.Duration) error {
	k.lease = lease
	return k.exec(ctx, "SET SESSION "+waitTimeout(lease))
}

// Ping wants the session with the mark: a proxy may have connected to another one.
func (k *lockConn) Ping(ctx context.Context) error {
	same, err := queryBool(ctx, k.tx.Querier(), "SELECT COALESCE("+threadOf(k.mark)+" = CONNECTION_ID(), 0)")
	if err == nil && !same {
		err = errors.New("another session of the server answers on the connection")
	}
	return err
}

// Confirm checks the connection: one that answers has its lock.
func (k *lockConn) Confirm(ctx context.Context) error { return k.Ping(ctx) }

// Alive checks the connection, like a pool that reuses one.
func (k *lockConn) Alive() error {
	return connected(k.tx.Conn)
}

// connected returns an error if the server has closed a connection, as far as its socket shows that.
func connected(conn *sql.Conn) error {
	return conn.Raw(func(raw any) error {
		r, ok := raw.(sqldriver.SessionResetter)
		if ok && errors.Is(r.ResetSession(context.Background()), sqldriver.ErrBadConn) {
			return errors.New("the server has closed the connection")
		}
		return nil
	})
}

// queryBool runs a query for one number, and reports whether it is 1. NULL is an error.
func queryBool(ctx context.Context, q querier, text string) (bool, error) {
	var n sql.NullInt64
	if err := q.QueryRowContext(ctx, text).Scan(&n); err != nil {
		return false, err
	}
	if !n.Valid {
		return false, fmt.Errorf("the server answered NULL to %s", strings.Fields(text)[1])
	}
	return n.Int64 == 1, nil
}

// sessionDialect is the strategy Session: GET_LOCK.
type sessionDialect struct{ connDialect }

func newSession(ctx context.Context, s *database) (strategy, error) {
	d := &sessionDialect{newConnDialect(s)}
	b, err := d.open(ctx, d, false)
	if err != nil {
		return nil, err
	}
	return b, nil
}

// NewConn prepares a connection for locks.
func (d *sessionDialect) NewConn(ctx context.Context, conn *sql.Conn, lease time.Duration) (connlock.Conn, error) {
	k, err := d.newLockConn(ctx, conn, lease, "autocommit = 1, "+d.server.isolation("REPEATABLE-READ")+", "+d.server.shortWaits())
	return &sessionConn{k}, err
}

// shortWaits returns assignments after which a session waits for rows and tables as briefly as the
// server can. The lock can't be renewed meanwhile.
func (s server) shortWaits() string {
	seconds := "1"
	if s.mariaDB {
		seconds = "0"
	}
	return "innodb_lock_wait_timeout = " + seconds + ", lock_wait_timeout = " + seconds
}

// KillHolder ends the connection of a holder.
func (d *sessionDialect) KillHolder(ctx context.Context, l connlock.Lock) (bool, error) {
	return d.evict(ctx, l, func(mark string) string {
		return "COALESCE(IS_USED_LOCK('" + l.Key + "') = " + threadOf(mark) + ", 0)"
	})
}

type sessionConn struct{ lockConn }

// TryLock tries to take the lock, and then writes its number.
func (k *sessionConn) TryLock(ctx context.Context, l connlock.Lock) (number uint64, ok bool, err error) {
	ok, err = queryBool(ctx, k.tx.Querier(), "SELECT GET_LOCK('"+l.Key+"', 0)")
	if err == nil && ok && !l.Probe {
		number, err = k.Number(ctx, l)
	}
	return number, ok && err == nil, err
}

func (k *sessionConn) WaitLock(ctx context.Context, l connlock.Lock, slice time.Duration) (bool, error) {
	return queryBool(ctx, k.tx.Querier(), fmt.Sprintf("SELECT GET_LOCK('%s', %d)", l.Key, max(1, int(slice/time.Second))))
}

func (k *sessionConn) Number(ctx context.Context, l connlock.Lock) (uint64, error) {
	n, err := k.c.nextNumber(ctx, k.tx.Querier(), l, k.mark)
	if number(err) == errLockWait || stale(err) {
		return 0, nil // another connection writes it
	}
	return n, err
}

func (k *sessionConn) Unlock(ctx context.Context, l connlock.Lock) error {
	var had sql.NullInt64 // NULL: no session has it
	err := k.tx.Querier().QueryRowContext(ctx, "SELECT RELEASE_LOCK('"+l.Key+"')").Scan(&had)
	if err == nil && had.Int64 != 1 {
		err = fmt.Errorf("%w: the server does not know of the lock", driver.ErrLost)
	}
	return err
}

func (k *sessionConn) Tx() *sql.Tx { return nil }

func (k *sessionConn) Commit(context.Context) error { return driver.ErrUnsupported }

func (k *sessionConn) Rollback(context.Context) error { return driver.ErrUnsupported }

func (k *sessionConn) Close() { k.tx.Close() }
