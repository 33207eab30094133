package pglock

import (
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
	"github.com/distlock/distlock/internal/wait"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// advisoryOldest is the first version that ends idle sessions.
const advisoryOldest = 14_00_00

// newAdvisory makes strategy Advisory. Package connlock manages its connections.
func newAdvisory(ctx context.Context, db *database) (*connlock.Backend, error) {
	if db.version < advisoryOldest {
		return nil, fmt.Errorf("%w: strategy advisory needs PostgreSQL 14 or later: earlier ones do not end the connection of a holder that is gone; use strategy row", driver.ErrInvalid)
	}
	t, err := db.ensureTable(ctx, advisoryTable(db.opts.Table))
	if err != nil {
		return nil, err
	}
	return connlock.New(connlock.Config{DB: db.db, Dialect: newAdvisoryDialect(db, t), Package: "pglock", Name: db.name, Explain: explain})
}

// advisoryDialect implements connlock's dialect for PostgreSQL.
type advisoryDialect struct {
	*database
	path      string // of the table: schema and name
	sqlNumber string // writes the number of a grant
	sqlTry    string // tries a lock, and writes the number
}

func newAdvisoryDialect(db *database, t *tableInfo) *advisoryDialect {
	write := `INSERT INTO ` + t.quoted + ` AS t (k, name, number, owner) SELECT $1::bytea, $2::text, ` + clock + `, $3::text %s
		ON CONFLICT (k) DO UPDATE SET number = greatest(t.number + 1, excluded.number), owner = excluded.owner RETURNING number`
	return &advisoryDialect{
		database: db, path: t.path,
		sqlNumber: fmt.Sprintf(write, ""),
		sqlTry: `WITH got AS MATERIALIZED (SELECT CASE WHEN pg_backend_pid() = $4::int THEN pg_try_advisory_lock($5::bigint) END AS ok), fence AS (` +
			fmt.Sprintf(write, `FROM got WHERE ok`) + `) SELECT got.ok, coalesce((SELECT number FROM fence), 0) FROM got`,
	}
}

// hash identifies a lock's row. The table's path is part of it, since locks of different tables do not
// exclude each other, and a table may be named in several ways.
func (d *advisoryDialect) hash(name string) []byte {
	sum := sha256.Sum256([]byte("distlock\x00" + d.path + "\x00" + name))
	return sum[:]
}

// key returns 64 bits of the hash, which is all that the server knows of a lock.
func (d *advisoryDialect) key(name string) string {
	return strconv.FormatInt(int64(binary.BigEndian.Uint64(d.hash(name))), 10)
}

// usersSQL returns what gives a transaction the timeouts of the connection's user.
const usersSQL = `SELECT format('SET LOCAL statement_timeout = %L; SET LOCAL lock_timeout = %L; SET LOCAL jit = %L',
	current_setting('statement_timeout'), current_setting('lock_timeout'), current_setting('jit'))`

// NewConn prepares a connection, which the server then ends when it is silent for too long, or has died while it waits, where
// the system on which the server runs can notice that.
func (d *advisoryDialect) NewConn(ctx context.Context, conn *sql.Conn, lease time.Duration) (connlock.Conn, error) {
	c := &advisoryConn{d: d, conn: conn}
	const start = `to_char(backend_start AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')`
	err := conn.QueryRowContext(ctx, usersSQL).Scan(&c.users)
	if err == nil {
		err = conn.QueryRowContext(ctx, `SELECT pid, `+start+`, `+lockSettings(lease).call("")+` FROM pg_stat_get_activity(pg_backend_pid())`).Scan(&c.pid, &c.start, new(any))
	}
	if err == nil {
		err = c.exec(ctx, "SET client_connection_check_interval = 1000")
	}
	if err != nil && sqlState(err) != badSetting {
		conn.Raw(hangUp)
		return nil, err
	}
	return c, nil
}

// Kill ends a connection. Its process number may belong to another connection by now, so the start is compared too.
func (d *advisoryDialect) Kill(ctx context.Context, id string) error {
	pid, start, _ := strings.Cut(id, " ")
	for {
		ended, err := d.db.ExecContext(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid::text = $1 AND backend_start = $2::timestamptz`, pid, start)
		if err != nil {
			return explainStatement(err)
		}
		if n, err := ended.RowsAffected(); err != nil || n == 0 {
			return err
		}
		if err := wait.Sleep(ctx, time.Millisecond); err != nil {
			return fmt.Errorf("the connection has not ended yet: %w", err)
		}
	}
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

// advisoryConn is a connection with a lock of its session.
type advisoryConn struct {
	d     *advisoryDialect
	conn  *sql.Conn
	pid   int
	start string
	users string // sets the user's own timeouts in a transaction

	tx     *sql.Tx // of the caller's work
	cancel context.CancelFunc
}

func (c *advisoryConn) ID() string { return fmt.Sprint(c.pid, " ", c.start) }

func (c *advisoryConn) exec(ctx context.Context, text string) error {
	_, err := c.conn.ExecContext(ctx, text)
	return err
}

func (c *advisoryConn) Lease(ctx context.Context, lease time.Duration) error {
	return c.exec(ctx, "SELECT "+leaseSettings(lease).call(""))
}

// Ping wants the process of the server that NewConn has seen: a proxy may have connected to another one. A statement without
// arguments leaves no snapshot in the transaction, which CREATE INDEX CONCURRENTLY would wait for.
func (c *advisoryConn) Ping(ctx context.Context) error {
	err := c.exec(ctx, fmt.Sprintf("SELECT 1 / (pg_backend_pid() = %d)::int", c.pid))
	if sqlState(err) == divisionByZero {
		err = c.another()
	}
	return err
}

func (c *advisoryConn) another() error {
	return fmt.Errorf("another process of the server answers on the connection of %d: a pooler or proxy in between does not keep connections apart", c.pid)
}

// Alive notices what the server has sent unasked, such as the end of the connection.
func (c *advisoryConn) Alive() error {
	return c.conn.Raw(func(raw any) error {
		conn, ok := raw.(*stdlib.Conn)
		if !ok || canPeek && socketAlive(conn.Conn().PgConn().Conn()) {
			return nil
		}
		//lint:ignore SA1019 Ping sends something, which would prolong the lease; this takes a millisecond
		return conn.Conn().PgConn().CheckConn()
	})
}

func (c *advisoryConn) TryLock(ctx context.Context, l connlock.Lock) (number uint64, ok bool, err error) {
	var got sql.NullBool
	err = c.conn.QueryRowContext(ctx, c.d.sqlTry, c.d.hash(l.Name), l.Name, l.Owner, c.pid, c.d.key(l.Name)).Scan(&got, &number)
	if err == nil && !got.Valid {
		err = c.another()
	}
	return number, got.Bool, err
}

// WaitLock waits for a transaction's lock, and then takes the session's, which can't fail. If the wait ends
// with an error, a rollback leaves nothing; pg_advisory_lock may report an error and have the
// lock.
func (c *advisoryConn) WaitLock(ctx context.Context, l connlock.Lock, slice time.Duration) (bool, error) {
	key, limit := c.d.key(l.Name), fmt.Sprintf("SET LOCAL lock_timeout = %d", slice.Milliseconds())
	err := c.exec(ctx, "BEGIN ISOLATION LEVEL READ COMMITTED; "+limit+"; SELECT pg_advisory_xact_lock("+key+"); SELECT pg_try_advisory_lock("+key+"); COMMIT")
	if sqlState(err) == lockTimeout {
		return false, c.exec(ctx, "ROLLBACK")
	}
	return err == nil, err
}

func (c *advisoryConn) Number(ctx context.Context, l connlock.Lock) (number uint64, err error) {
	err = c.conn.QueryRowContext(ctx, c.d.sqlNumber, c.d.hash(l.Name), l.Name, l.Owner).Scan(&number)
	return number, err
}

func (c *advisoryConn) Unlock(ctx context.Context, l connlock.Lock) error {
	var had bool
	err := c.conn.QueryRowContext(ctx, "SELECT pg_advisory_unlock($1::bigint)", c.d.key(l.Name)).Scan(&had)
	if err == nil && !had {
		err = fmt.Errorf("%w: the server does not know of the lock", driver.ErrLost)
	}
	return err
}

// Begin starts a transaction, in which the session has the lock until it is released.
func (c *advisoryConn) Begin(ctx context.Context) (tx *sql.Tx, err error) {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer context.AfterFunc(ctx, cancel)()
	if tx, err = c.conn.BeginTx(own, nil); err == nil {
		_, err = tx.ExecContext(own, c.users)
	}
	c.tx, c.cancel = tx, cancel
	return tx, err
}

// Commit commits. If ctx ends first, the connection is unusable.
func (c *advisoryConn) Commit(ctx context.Context) error {
	defer context.AfterFunc(ctx, c.cancel)()
	return c.tx.Commit()
}

func (c *advisoryConn) Rollback(ctx context.Context) error {
	defer context.AfterFunc(ctx, c.cancel)()
	if err := c.tx.Rollback(); err != nil && !errors.Is(err, sql.ErrTxDone) {
		return err
	}
	return c.Ping(ctx) // the work may have ended the transaction, or the connection
}

// Close closes the connection. A pgx pool would otherwise take it back as it is.
func (c *advisoryConn) Close() error {
	c.conn.Raw(hangUp)
	if c.tx != nil {
		c.tx.Rollback() // database/sql waits for its end
	}
	return connlock.Discard(c.conn)
}

// hangUp closes a connection of pgx's.
func hangUp(raw any) error {
	if c, ok := raw.(*stdlib.Conn); ok {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		c.Conn().Close(ctx)
	}
	return nil
}
