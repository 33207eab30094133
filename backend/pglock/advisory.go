package pglock

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/connlock"
	"github.com/jackc/pgx/v5"
)

// advisory is the strategy. See package pinned for what it does with connections.
type advisory struct{ *connlock.Backend }

// advisoryDialect says it in PostgreSQL's words.
type advisoryDialect struct {
	*database
	solo   bool // locks of transactions
	number string
	take   string
}

// lockTimeout is what the server answers at the end of a wait.
const lockTimeout = "55P03"

func newAdvisory(ctx context.Context, s *database) (strategy, error) {
	if s.pooled {
		return nil, fmt.Errorf("%w: advisory locks belong to a connection, and a pooler gives each transaction another one: connect past it, or use strategy %s", driver.ErrUnsupported, Row)
	}
	d := newAdvisoryDialect(s)
	if _, err := s.ensureTable(ctx, advisoryTable(s.opts.Table)); err != nil {
		return nil, err
	}
	b, err := connlock.New(ctx, connlock.Config{DB: s.db, Dialect: d, Package: "pglock", Name: s.name, OnePerConn: d.solo, SeparateNumbers: d.solo || d.closed()})
	if err != nil {
		return nil, err
	}
	return advisory{b}, nil
}

// closed says that connections stay in an empty transaction between statements: before version
// 14 the server ends silent ones only there.
func (d *advisoryDialect) closed() bool { return d.version < 140000 && !d.solo }

func newAdvisoryDialect(s *database) *advisoryDialect {
	table := quote(s.opts.Table)
	fence := `INSERT INTO ` + table + ` AS t (k, name, number, owner, link, since, meta) %s
		ON CONFLICT (k) DO UPDATE SET number = greatest(t.number + 1, excluded.number), owner = excluded.owner, link = excluded.link,
			since = excluded.since, meta = excluded.meta RETURNING number`
	const row = `$1::bytea, $2::text, ` + clock + `, $3::text, $4::text, ` + clock + `, $5::text`
	return &advisoryDialect{
		database: s,
		solo:     s.opts.Level == Transaction,
		number:   fmt.Sprintf(fence, `VALUES (`+row+`)`),
		take: `WITH got AS MATERIALIZED (SELECT pg_try_advisory_lock($6::bigint) AS ok), fence AS (` +
			fmt.Sprintf(fence, `SELECT `+row+` FROM got WHERE ok`) +
			`) SELECT got.ok, coalesce((SELECT number FROM fence), 0) FROM got`,
	}
}

// advisoryTable has the numbers of grants, and who got the last one: the lock itself is
// nowhere but in the server's memory.
func advisoryTable(table string) *tableSpec {
	return &tableSpec{table: table, storage: "fillfactor = 50", columns: []columnSpec{
		{name: "k", kind: "bytea", note: "SHA-256 of the table's and the lock's name"},
		{name: "name", kind: "text"},
		{name: "number", kind: "bigint", note: "of the last grant; its fence is 1024 times that"},
		{name: "owner", kind: "text", note: "who got it"},
		{name: "link", kind: "text", note: "on which connection"},
		{name: "since", kind: "bigint", note: "µs since 1970"},
		{name: "meta", kind: "text", note: "JSON"},
	}}
}

func advisorySchema(o Options) string { return advisoryTable(o.Table).ddl() }

// hashOf names a lock in its row. Tables are apart, as their locks are.
func (d *advisoryDialect) hashOf(name string) []byte {
	sum := sha256.Sum256([]byte("distlock\x00" + d.opts.Table + "\x00" + name))
	return sum[:]
}

// Key is 64 bits of the hash, which is all that the server has for a lock.
func (d *advisoryDialect) Key(name string) string {
	return strconv.FormatInt(int64(binary.BigEndian.Uint64(d.hashOf(name))), 10)
}

// Cancel ends a statement. The link's number may have been given to another connection
// since, so its start is compared too.
func (d *advisoryDialect) Cancel(ctx context.Context, id string) error {
	return d.signal(ctx, d.db, "pg_cancel_backend(pid)", id)
}

// killTime bounds the wait for the end of a connection.
const killTime = 5 * time.Second

// Kill ends a connection, and waits a little for its end.
func (d *advisoryDialect) Kill(ctx context.Context, id string) error {
	return d.kill(ctx, d.db, id)
}

// kill is Kill by a pool or in a transaction, which sees again and again what it has seen
// once, unless it is told to look anew.
func (d *advisoryDialect) kill(ctx context.Context, q querier, id string) error {
	ctx, cancel := context.WithTimeout(ctx, killTime)
	defer cancel()
	signal := "pg_terminate_backend(pid)"
	if d.version >= 140000 {
		signal = "pg_terminate_backend(pid, 1000)"
	}
	if err := d.signal(ctx, q, signal, id); err != nil {
		return err
	}
	for {
		lives, err := d.lives(ctx, q, id)
		if err != nil || !lives {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the connection has not ended yet: %w", ctx.Err())
		case <-time.After(time.Millisecond):
		}
	}
}

// lives reports whether the server lists a connection now.
func (d *advisoryDialect) lives(ctx context.Context, q querier, id string) (is bool, err error) {
	if _, err := q.ExecContext(ctx, `SELECT pg_stat_clear_snapshot()`); err != nil {
		return false, err
	}
	pid, start := cutID(id)
	err = q.QueryRowContext(ctx, `SELECT count(*) > 0 FROM pg_stat_activity WHERE `+itself, pid, start).Scan(&is)
	return is, err
}

// itself is a connection by its ID.
const itself = `pid = $1::int AND backend_start = $2::timestamptz`

func (d *advisoryDialect) signal(ctx context.Context, q querier, call, id string) error {
	pid, start := cutID(id)
	_, err := q.ExecContext(ctx, `SELECT `+call+` FROM pg_stat_activity WHERE `+itself, pid, start)
	return err
}

func cutID(id string) (pid int, start string) {
	number, start, _ := strings.Cut(id, " ")
	pid, _ = strconv.Atoi(number)
	return pid, start
}

// KillHolder ends the connection that has the lock for its Owner. The row is locked meanwhile: a
// successor has to write it before it holds.
func (d *advisoryDialect) KillHolder(ctx context.Context, l connlock.Lock) (bool, error) {
	tx, err := d.db.BeginTx(ctx, nil)
	if err != nil {
		return false, err
	}
	defer tx.Rollback()
	var link string
	err = tx.QueryRowContext(ctx, `SELECT link FROM `+quote(d.opts.Table)+` WHERE k = $1::bytea AND owner = $2::text FOR UPDATE`, d.hashOf(l.Name), l.Owner).Scan(&link)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	var has bool
	pid, start := cutID(link)
	err = tx.QueryRowContext(ctx, `SELECT EXISTS (SELECT FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE `+itself+` AND `+thisLock(l)+`)`, pid, start).Scan(&has)
	if err != nil || !has {
		return false, err
	}
	return true, d.kill(ctx, tx, link) // there may be no other connection
}

// thisLock are a lock's rows of pg_locks.
func thisLock(l connlock.Lock) string {
	return `locktype = 'advisory' AND granted AND objsubid = 1 AND (classid::bigint << 32) | objid::bigint = ` + l.Key +
		` AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`
}

// Number writes a lock's number for a link.
func (d *advisoryDialect) Number(ctx context.Context, l connlock.Lock, id string) (uint64, error) {
	return d.next(ctx, d.db, l, id)
}

// next writes a lock's next number, and who has it.
func (d *advisoryDialect) next(ctx context.Context, q querier, l connlock.Lock, id string) (number uint64, err error) {
	args, err := d.row(l, id)
	if err != nil {
		return 0, err
	}
	err = q.QueryRowContext(ctx, d.number, args...).Scan(&number)
	return number, err
}

// row is what is written of a grant.
func (d *advisoryDialect) row(l connlock.Lock, id string) ([]any, error) {
	meta, err := json.Marshal(l.Meta)
	return []any{d.hashOf(l.Name), l.Name, l.Owner, id, string(meta)}, err
}

// RemoveProbe has nothing to do: a trial writes nothing, so that nobody needs the right to delete.
func (d *advisoryDialect) RemoveProbe(context.Context, connlock.Lock) error { return nil }

// CommitRefused: an error that the server sent, other than that the connection ends. It rolls back
// without one where a statement of the transaction had failed before.
func (d *advisoryDialect) CommitRefused(err error) bool {
	if errors.Is(err, pgx.ErrTxCommitRollback) {
		return true
	}
	state := sqlState(err)
	return state != "" && !strings.HasPrefix(state, "08") && !strings.HasPrefix(state, "57P") && !strings.HasPrefix(state, "XX") && state != "57014"
}

// NewConn asks the server to end the connection when it is silent for too long. Before version
// 14 it does so in transactions only: so the connection stays in an empty one, which
// neither has a snapshot nor holds anything else back.
func (d *advisoryDialect) NewConn(ctx context.Context, conn *sql.Conn, lease time.Duration) (connlock.Conn, error) {
	k := sessionConn{d: d, tx: connlock.Tx{Conn: conn}, closed: d.closed()}
	const start = `to_char(backend_start AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')`
	err := conn.QueryRowContext(ctx, `SELECT pid || ' ' || `+start+` FROM pg_stat_activity WHERE pid = pg_backend_pid()`).Scan(&k.id)
	if err == nil {
		err = k.settings(ctx)
	}
	if err == nil {
		err = k.Lease(ctx, lease)
	}
	if err == nil {
		err = k.idle(ctx)
	}
	if err != nil {
		conn.Raw(hangUp)
		return nil, err
	}
	if d.solo {
		return &txConn{sessionConn: k}, nil
	}
	return &k, nil
}
