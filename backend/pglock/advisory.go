package pglock

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/connlock"
	"github.com/distlock/distlock/internal/metajson"
	"github.com/distlock/distlock/internal/wait"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// advisory is the strategy. Package connlock manages its connections.
type advisory struct{ *connlock.Backend }

// newAdvisory makes strategy Advisory.
func newAdvisory(ctx context.Context, db *database) (advisory, error) {
	t, err := db.ensureTable(ctx, advisoryTable(db.opts.Table))
	if err != nil {
		return advisory{}, err
	}
	d := newAdvisoryDialect(db, t)
	b, err := connlock.New(ctx, connlock.Config{
		DB: db.db, Dialect: d, Package: "pglock", Name: db.name,
		Joins: db.opts.Level == Transaction, Polling: d.ofTx, Explain: explain,
	})
	return advisory{b}, err
}

// advisoryDialect implements connlock's dialect for PostgreSQL.
type advisoryDialect struct {
	*database
	// ofTx: locks belong to transactions. Before version 14 those of sessions do, too: the server ends silent connections
	// only in transactions. An empty one has no snapshot, and holds nothing back.
	ofTx bool

	path  string // of the table: schema and name
	table string // the same as an identifier

	sqlNumber string // writes the number of a grant
	sqlOwn    string // the same through the lock's own connection; no row if a commit may take long
	sqlTry    string // tries a lock, and writes the number unless a commit may take long
	meta      metajson.Cache
}

// commitsAlone is true if a commit waits for no standby: one that has gone would keep a connection from renewing its locks.
const commitsAlone = `current_setting('synchronous_standby_names') = ''`

func newAdvisoryDialect(db *database, t *tableInfo) *advisoryDialect {
	write := `INSERT INTO ` + t.quoted + ` AS t (k, name, number, owner, link, since, meta) %s
		ON CONFLICT (k) DO UPDATE SET number = greatest(t.number + 1, excluded.number), owner = excluded.owner, link = excluded.link,
			since = excluded.since, meta = excluded.meta RETURNING number`
	const row = `$1::bytea, $2::text, ` + clock + `, $3::text, $4::text, ` + clock + `, $5::text`
	return &advisoryDialect{
		database: db, path: t.path, table: t.quoted, ofTx: db.opts.Level == Transaction || db.version < 14_00_00,
		sqlNumber: fmt.Sprintf(write, `VALUES (`+row+`)`),
		sqlOwn:    fmt.Sprintf(write, `SELECT `+row+` WHERE `+commitsAlone),
		sqlTry: `WITH got AS MATERIALIZED (SELECT pg_try_advisory_lock($6::bigint) AS ok), fence AS (` +
			fmt.Sprintf(write, `SELECT `+row+` FROM got WHERE ok AND `+commitsAlone) +
			`) SELECT got.ok, coalesce((SELECT number FROM fence), 0) FROM got`,
	}
}

// hash identifies a lock's row. The table's path is part of it, since locks of different tables do not
// exclude each other, and a table may be named in several ways.
func (d *advisoryDialect) hash(name string) []byte {
	sum := sha256.Sum256([]byte("distlock\x00" + d.path + "\x00" + name))
	return sum[:]
}

// Key returns 64 bits of the hash, which is all that the server knows of a lock.
func (d *advisoryDialect) Key(name string) string {
	return strconv.FormatInt(int64(binary.BigEndian.Uint64(d.hash(name))), 10)
}

// NewConn prepares a connection, which the server then ends when it is silent for too long.
func (d *advisoryDialect) NewConn(ctx context.Context, conn *sql.Conn, lease time.Duration) (connlock.Conn, error) {
	c := sessionConn{d: d, tx: connlock.Tx{Conn: conn}}
	const start = `to_char(backend_start AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')`
	err := conn.QueryRowContext(ctx, `SELECT pid || ' ' || `+start+`, `+d.lockSettings(lease).call("")+` FROM pg_stat_get_activity(pg_backend_pid())`).Scan(&c.id, new(any))
	if err == nil {
		err = c.checkClient(ctx)
	}
	if err != nil {
		conn.Raw(hangUp)
		return nil, err
	}
	if d.ofTx {
		return &txConn{sessionConn: c}, nil
	}
	return &c, nil
}

// Kill ends a connection, and waits a little for its end.
func (d *advisoryDialect) Kill(ctx context.Context, id string) error {
	return d.kill(ctx, d.db, id)
}

// killTime bounds the wait for the end of a connection.
const killTime = 5 * time.Second

func (d *advisoryDialect) kill(ctx context.Context, q connlock.Querier, id string) error {
	ctx, cancel := context.WithTimeout(ctx, killTime)
	defer cancel()
	call := "pg_terminate_backend(pid)"
	if d.version >= 14_00_00 {
		call = "pg_terminate_backend(pid, 1000)"
	}
	if err := d.signal(ctx, q, call, id); err != nil {
		return err
	}
	for {
		lives, err := d.lives(ctx, q, id)
		if err != nil || !lives {
			return err
		}
		if err := wait.Sleep(ctx, time.Millisecond); err != nil {
			return fmt.Errorf("the connection has not ended yet: %w", err)
		}
	}
}

// thisConn selects a connection by its ID.
const thisConn = `pid = $1::int AND backend_start = $2::timestamptz`

// signal calls a function for a connection. Its process number may belong to another connection by now, so
// the start is compared too.
func (d *advisoryDialect) signal(ctx context.Context, q connlock.Querier, call, id string) error {
	pid, start := splitID(id)
	_, err := q.ExecContext(ctx, `SELECT `+call+` FROM pg_stat_activity WHERE `+thisConn, pid, start)
	return err
}

// lives reports whether the server lists a connection now. Inside a transaction the list would stay as
// it was first seen, so that is cleared.
func (d *advisoryDialect) lives(ctx context.Context, q connlock.Querier, id string) (is bool, err error) {
	if _, err := q.ExecContext(ctx, `SELECT pg_stat_clear_snapshot()`); err != nil {
		return false, err
	}
	pid, start := splitID(id)
	err = q.QueryRowContext(ctx, `SELECT count(*) > 0 FROM pg_stat_activity WHERE `+thisConn, pid, start).Scan(&is)
	return is, err
}

func splitID(id string) (pid int, start string) {
	number, start, _ := strings.Cut(id, " ")
	pid, _ = strconv.Atoi(number)
	return pid, start
}

// KillHolder ends the connection that has the lock for its Owner. The row stays locked meanwhile, since a
// successor must write it before it holds.
func (d *advisoryDialect) KillHolder(ctx context.Context, l connlock.Lock) (bool, error) {
	tx, err := d.db.BeginTx(ctx, nil)
	if err != nil {
		return false, explainStatement(err)
	}
	defer tx.Rollback()
	var id string
	err = tx.QueryRowContext(ctx, `SELECT link FROM `+d.table+` WHERE k = $1::bytea AND owner = $2::text FOR UPDATE`, d.hash(l.Name), l.Owner).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, explainStatement(err)
	}
	var has bool
	pid, start := splitID(id)
	err = tx.QueryRowContext(ctx, `SELECT EXISTS (SELECT FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE `+thisConn+` AND `+thisLock(l)+`)`, pid, start).Scan(&has)
	if err != nil || !has {
		return false, err
	}
	return true, d.kill(ctx, tx, id) // the pool may have no other connection
}

// thisLock selects a lock's holders from pg_locks.
func thisLock(l connlock.Lock) string {
	return `locktype = 'advisory' AND granted AND objsubid = 1 AND (classid::bigint << 32) | objid::bigint = ` + l.Key +
		` AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`
}

// Number writes a lock's next number through a connection of the pool.
func (d *advisoryDialect) Number(ctx context.Context, l connlock.Lock, id string) (number uint64, err error) {
	err = d.db.QueryRowContext(ctx, d.sqlNumber, d.grantRow(l, id)...).Scan(&number)
	return number, err
}

// grantRow returns the values that are written for a grant.
func (d *advisoryDialect) grantRow(l connlock.Lock, id string) []any {
	return []any{d.hash(l.Name), l.Name, l.Owner, id, cmp.Or(d.meta.Encode(l.Meta), "{}")}
}

// CommitRefused reports whether the server refused to commit: it sent an error other than the end of the
// connection, or it rolled back, since an earlier statement had failed.
func (d *advisoryDialect) CommitRefused(err error) bool {
	if errors.Is(err, pgx.ErrTxCommitRollback) {
		return true
	}
	state := sqlState(err)
	return state != "" && !strings.HasPrefix(state, "08") && !strings.HasPrefix(state, "57P") && !strings.HasPrefix(state, "XX") && state != "57014"
}

// sessionConn is a connection with locks of its session.
type sessionConn struct {
	d  *advisoryDialect
	tx connlock.Tx
	id string
}

func (c *sessionConn) ID() string { return c.id }

// checkClient lets the server notice soon that a waiting client has died. Some systems on which it runs can't, and refuse
// the setting.
func (c *sessionConn) checkClient(ctx context.Context) error {
	if c.d.version < 14_00_00 {
		return nil
	}
	err := c.exec(ctx, "SET client_connection_check_interval = 1000")
	if sqlState(err) == invalidValue {
		return nil
	}
	return err
}

// invalidValue is the state of a setting that the server can't have.
const invalidValue = "22023"

const divisionByZero = "22012"

func (c *sessionConn) exec(ctx context.Context, text string) error {
	return c.tx.Exec(ctx, text)
}

func (c *sessionConn) Lease(ctx context.Context, lease time.Duration) error {
	return c.exec(ctx, "SELECT "+leaseSettings(lease).call(""))
}

// Ping wants the process of the server that NewConn has seen: a proxy may have connected to another one. A statement without
// arguments leaves no snapshot in the transaction, which CREATE INDEX CONCURRENTLY would wait for.
func (c *sessionConn) Ping(ctx context.Context) error {
	pid, _ := splitID(c.id)
	err := c.exec(ctx, fmt.Sprintf("SELECT 1 / (pg_backend_pid() = %d)::int", pid))
	if sqlState(err) == divisionByZero {
		err = fmt.Errorf("another process of the server answers on the connection of %d", pid)
	}
	return err
}

// Alive notices what the server has sent unasked, such as the end of the connection.
func (c *sessionConn) Alive() error {
	return c.tx.Conn.Raw(func(raw any) error {
		conn, ok := raw.(*stdlib.Conn)
		if !ok || canPeek && socketAlive(conn.Conn().PgConn().Conn()) {
			return nil
		}
		//lint:ignore SA1019 Ping sends something, which would prolong the lease; this takes a millisecond
		return conn.Conn().PgConn().CheckConn()
	})
}

// TryLock tries, and writes the number in the same statement. If that finds the row locked, it is not known
// whether it has taken the lock.
func (c *sessionConn) TryLock(ctx context.Context, l connlock.Lock) (number uint64, ok bool, err error) {
	if !l.Probe {
		args := append(c.d.grantRow(l, c.id), l.Key)
		err = c.tx.Querier().QueryRowContext(ctx, c.d.sqlTry, args...).Scan(&ok, &number)
		if sqlState(err) != lockTimeout {
			return number, ok, err
		}
		if err = c.undo(ctx, l); err != nil {
			return 0, false, err
		}
	}
	err = c.tx.Querier().QueryRowContext(ctx, "SELECT pg_try_advisory_lock($1::bigint)", l.Key).Scan(&ok)
	return 0, ok, err
}

// WaitLock waits for a transaction's lock, and then takes the session's, which can't fail. If the wait ends
// with an error, a rollback leaves nothing; pg_advisory_lock may report an error and have the
// lock.
func (c *sessionConn) WaitLock(ctx context.Context, l connlock.Lock, slice time.Duration) (bool, error) {
	limit := fmt.Sprintf("SET LOCAL lock_timeout = %d", slice.Milliseconds())
	err := c.exec(ctx, "BEGIN ISOLATION LEVEL READ COMMITTED; "+limit+"; SELECT pg_advisory_xact_lock("+l.Key+"); SELECT pg_try_advisory_lock("+l.Key+"); COMMIT")
	if sqlState(err) == lockTimeout {
		return false, c.exec(ctx, "ROLLBACK")
	}
	return err == nil, err
}

// Number writes on the lock's own connection. It returns 0 if the row is locked, or a commit may take long.
func (c *sessionConn) Number(ctx context.Context, l connlock.Lock) (number uint64, err error) {
	err = c.tx.Querier().QueryRowContext(ctx, c.d.sqlOwn, c.d.grantRow(l, c.id)...).Scan(&number)
	if sqlState(err) == lockTimeout || errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	return number, err
}

// Confirm pings: a connection that answers has its lock.
func (c *sessionConn) Confirm(ctx context.Context) error { return c.Ping(ctx) }

// undo unlocks if the session has the lock. Unlocking without would be a warning in the server's
// log.
func (c *sessionConn) undo(ctx context.Context, l connlock.Lock) error {
	return c.exec(ctx, `SELECT pg_advisory_unlock(`+l.Key+`) FROM pg_locks WHERE pid = pg_backend_pid() AND `+thisLock(l))
}

func (c *sessionConn) Unlock(ctx context.Context, l connlock.Lock) error {
	var had bool
	err := c.tx.Querier().QueryRowContext(ctx, "SELECT pg_advisory_unlock($1::bigint)", l.Key).Scan(&had)
	if err == nil && !had {
		err = fmt.Errorf("%w: the server does not know of the lock", driver.ErrLost)
	}
	return err
}

func (c *sessionConn) Tx() *sql.Tx { return nil }

func (c *sessionConn) Commit(context.Context) error { return driver.ErrUnsupported }

func (c *sessionConn) Rollback(context.Context) error { return driver.ErrUnsupported }

func (c *sessionConn) Close() {
	c.tx.Conn.Raw(hangUp)
	c.tx.Close()
}

// hangUp closes a connection of pgx's. A pgx pool would otherwise take it back as it is.
func hangUp(raw any) error {
	if c, ok := raw.(*stdlib.Conn); ok {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		c.Conn().Close(ctx)
	}
	return nil
}

// txConn is a connection with the lock of its transaction. Numbers are written through other connections,
// since the transaction's writes may be rolled back.
type txConn struct {
	sessionConn
	has bool // the transaction has the lock
}

// Lease is a setting of the connection. A transaction without the lock is ended first, since its
// rollback would undo the setting. A transaction with the lock keeps the setting as long as it lasts.
func (c *txConn) Lease(ctx context.Context, lease time.Duration) error {
	if !c.has {
		if err := c.finish(ctx, (*sql.Tx).Rollback); err != nil {
			return err
		}
	}
	return c.sessionConn.Lease(ctx, lease)
}

func (c *txConn) finish(ctx context.Context, end func(*sql.Tx) error) error {
	c.has = false
	return c.tx.Finish(ctx, end)
}

// TryLock leaves no transaction open if the lock is refused.
func (c *txConn) TryLock(ctx context.Context, l connlock.Lock) (number uint64, ok bool, err error) {
	tx, err := c.tx.Begin(ctx)
	if err != nil {
		return 0, false, err
	}
	err = tx.QueryRowContext(ctx, "SELECT pg_try_advisory_xact_lock($1::bigint)", l.Key).Scan(&ok)
	c.has = c.has || ok
	if err == nil && !ok {
		err = c.finish(ctx, (*sql.Tx).Rollback)
	}
	return 0, ok, err
}

// Number leaves it to another connection.
func (c *txConn) Number(context.Context, connlock.Lock) (uint64, error) { return 0, nil }

// Unlock leaves an empty transaction, which saves the next attempt a round trip.
func (c *txConn) Unlock(ctx context.Context, _ connlock.Lock) error {
	c.has = false
	return c.exec(ctx, "ROLLBACK AND CHAIN")
}

func (c *txConn) Tx() *sql.Tx { return c.tx.Current() }

func (c *txConn) Commit(ctx context.Context) error { return c.finish(ctx, (*sql.Tx).Commit) }

func (c *txConn) Rollback(ctx context.Context) error { return c.finish(ctx, (*sql.Tx).Rollback) }
