package sqlitelock

import (
	"cmp"
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/engine"
)

// The file's header has the mark "dlck" and the version of the tables.
const (
	applicationID = 0x646c636b
	schemaVersion = 2
)

// Of a name without a row, meta.swept bounds the version and void that it had. meta.clock is what the store's clock, in µs, is
// ahead of the clock whose life meta.boot names; meta.seen is a time in ns that this clock has reached.
const schema = `
CREATE TABLE meta (
	boot  TEXT NOT NULL,
	seen  INTEGER NOT NULL,
	clock INTEGER NOT NULL,
	swept INTEGER NOT NULL
) STRICT;
CREATE TABLE locks (
	name    TEXT PRIMARY KEY,
	version INTEGER NOT NULL,
	until   INTEGER NOT NULL,
	void    INTEGER NOT NULL,
	claims  TEXT NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO meta VALUES ('', 0, 0, 0);
`

const (
	// sqlRead returns all that is kept in one column, which costs a client less than four, or meta.swept if there is nothing. It
	// returns no row if another boot has taken the file over.
	sqlRead = `
SELECT coalesce(l.version || ' ' || l.until || ' ' || l.void || ' ' || l.claims, m.swept)
FROM meta m LEFT JOIN locks l ON l.name = ?
WHERE m.boot = ?`

	sqlInsert = `INSERT INTO locks (version, until, void, claims, name) VALUES (?, ?, ?, ?, ?)`

	// sqlUpdate changes no row if another process has changed it, or another boot has taken the file over.
	sqlUpdate = `
UPDATE locks SET version = ?, until = ?, void = ?, claims = ?
WHERE name = ? AND version = ? AND EXISTS (SELECT 1 FROM meta WHERE boot = ?)`

	sqlStamp = `UPDATE meta SET seen = max(seen, ?) WHERE boot = ?`
	sqlEnd   = `UPDATE locks SET version = version + 1, until = 0, claims = '';`

	sqlSweepEnd     = `SELECT max(name) FROM (SELECT name FROM locks WHERE name > ? ORDER BY name LIMIT ?)`
	sqlSweepNumbers = `UPDATE meta SET swept = max(swept, ?)`
	sqlSweepLocks   = `DELETE FROM locks WHERE name > ?1 AND name <= ?2 AND version <= ?3 AND void <= ?3 AND until <= ?4`

	sqlNames = `SELECT name FROM locks WHERE name >= ? AND name > ? AND until > ? ORDER BY name LIMIT ?`
)

// clock is the clock by which holds end.
type clock struct {
	// boot names the life of the clock: the boot id, or another one that the file has for this life.
	boot string

	// stops means that the clock begins anew with each boot, and never goes back within one.
	stops bool

	// now returns nanoseconds, the same for all processes of the host.
	now func() int64

	// ahead is what the store's clock is ahead of it, in µs.
	ahead int64
}

// micros returns the store's clock. It began with the wall clock, and does not jump.
func (c *clock) micros() int64 { return c.now()/1000 + c.ahead }

// reached reports whether the clock can be the one that has reached the time seen.
func (c *clock) reached(seen int64) bool { return !c.stops || c.now() >= seen }

// wallMicros returns the wall clock in µs. It may jump: versions only use it as their lower bound.
func wallMicros() int64 { return time.Now().UnixMicro() }

// resultCode returns SQLite's primary result code; 0 if err is not SQLite's.
func resultCode(err error) int {
	if err == nil {
		return 0
	}
	if e := (*sqlite.Error)(nil); errors.As(err, &e) {
		return e.Code() & 0xff
	}
	return 0
}

// isBusy reports whether err says that another process was writing, so nothing was done.
func isBusy(err error) bool { return resultCode(err) == lib.SQLITE_BUSY }

var errAnotherBoot = errors.New("a process on another host has taken the lock file over: it must be used on one host only")

// checkHeader reports whether the file is new. It returns ErrInvalid for a file that is
// neither new nor made by a known version.
func checkHeader(ctx context.Context, conn *sql.Conn) (fresh bool, err error) {
	var app, version, tables int64
	row := conn.QueryRowContext(ctx, `SELECT
		(SELECT application_id FROM pragma_application_id),
		(SELECT user_version FROM pragma_user_version),
		(SELECT count(*) FROM sqlite_schema)`)
	if err := row.Scan(&app, &version, &tables); err != nil {
		return false, err
	}
	switch {
	case app == 0 && version == 0 && tables == 0:
		return true, nil
	case app != applicationID:
		return false, fmt.Errorf("%w: this is the database of another program; distlock wants a file of its own", driver.ErrInvalid)
	case version > schemaVersion:
		return false, fmt.Errorf("%w: the file has schema version %d, this program knows %d: a newer distlock made it", driver.ErrInvalid, version, schemaVersion)
	case version == 1:
		return false, fmt.Errorf("%w: an older distlock made the file, whose tables have another form: stop its programs, and remove the file with its -wal, -shm and -notify; all holds end", driver.ErrInvalid)
	case version != schemaVersion:
		return false, fmt.Errorf("%w: the file has schema version %d, which never existed", driver.ErrInvalid, version)
	}
	return false, nil
}

// kept reads what the file has of a name.
func (s *statements) kept(name, boot string) (k engine.Kept, err error) {
	err = errAnotherBoot
	failed := s.read.query(func(row []sqldriver.Value) { k, err = keptOf(row[0]), nil }, name, boot)
	return k, cmp.Or(failed, err)
}

// keptOf decodes the column of sqlRead.
func keptOf(v any) (k engine.Kept) {
	text, there := v.(string)
	if !there {
		k.Void, _ = v.(int64)
		return k
	}
	for _, n := range []*int64{&k.Version, &k.Until, &k.Void} {
		number, rest, _ := strings.Cut(text, " ")
		*n, _ = strconv.ParseInt(number, 10, 64)
		text = rest
	}
	k.Text = text
	return k
}

// statement is a prepared statement, used without database/sql, which made a quarter of a call's allocations. It is used
// by the goroutine that has the turn. Values are int64 and string.
type statement struct {
	conn sqldriver.Conn
	text string
	stmt driverStmt // nil until it is compiled
	args []sqldriver.NamedValue
	row  []sqldriver.Value
}

type driverStmt interface {
	sqldriver.Stmt
	sqldriver.StmtExecContext
	sqldriver.StmtQueryContext
}

// compile does nothing the second time.
func (s *statement) compile(ctx context.Context) error {
	if s.stmt != nil {
		return nil
	}
	stmt, err := s.conn.(sqldriver.ConnPrepareContext).PrepareContext(ctx, s.text)
	if err == nil {
		s.stmt = stmt.(driverStmt)
	}
	return err
}

func (s *statement) close() error {
	if s.stmt == nil {
		return nil
	}
	return s.stmt.Close()
}

func (s *statement) bind(args []sqldriver.Value) []sqldriver.NamedValue {
	s.args = s.args[:0]
	for i, v := range args {
		s.args = append(s.args, sqldriver.NamedValue{Ordinal: i + 1, Value: v})
	}
	return s.args
}

// exec returns how many rows were changed. It has no context: the writer's statements are short.
func (s *statement) exec(args ...sqldriver.Value) (int64, error) {
	if err := s.compile(context.Background()); err != nil {
		return 0, err
	}
	result, err := s.stmt.ExecContext(context.Background(), s.bind(args))
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// query calls f with each row, which is valid until f returns.
func (s *statement) query(f func(row []sqldriver.Value), args ...sqldriver.Value) error {
	if err := s.compile(context.Background()); err != nil {
		return err
	}
	rows, err := s.stmt.QueryContext(context.Background(), s.bind(args))
	if err != nil {
		return err
	}
	defer rows.Close()
	s.row = slices.Grow(s.row[:0], len(rows.Columns()))[:len(rows.Columns())]
	for {
		switch err := rows.Next(s.row); {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
		f(s.row)
	}
}

// statements are the writer's.
type statements struct {
	conn sqldriver.Conn

	begin, commit, rollback, checkpoint *statement

	read, insert, update, stamp        *statement
	sweepEnd, sweepNumbers, sweepLocks *statement

	all []*statement
}

// prepare compiles what a short hold uses, which finds out whether the tables are as they should be. A command that holds one
// lock would wait longer for all the others than for these: they are compiled when they are used.
func (s *statements) prepare(ctx context.Context, conn sqldriver.Conn) error {
	s.conn = conn
	for stmt, text := range map[**statement]string{
		&s.begin: "BEGIN IMMEDIATE", &s.commit: "COMMIT", &s.rollback: "ROLLBACK", &s.checkpoint: "PRAGMA wal_checkpoint(PASSIVE)",
		&s.read: sqlRead, &s.insert: sqlInsert, &s.update: sqlUpdate, &s.stamp: sqlStamp,
		&s.sweepEnd: sqlSweepEnd, &s.sweepNumbers: sqlSweepNumbers, &s.sweepLocks: sqlSweepLocks,
	} {
		*stmt = &statement{conn: conn, text: text}
		s.all = append(s.all, *stmt)
	}
	for _, used := range []*statement{s.begin, s.commit, s.rollback, s.read, s.insert, s.update} {
		if err := used.compile(ctx); err != nil {
			return err
		}
	}
	return nil
}

// close must come before the connection's Close. Otherwise SQLite keeps the file open, and
// leaves the WAL beside it.
func (s *statements) close() error {
	var errs []error
	for _, s := range s.all {
		errs = append(errs, s.close())
	}
	return errors.Join(errs...)
}

// The pace of the sweeper: it visits two rows for each row added, in steps.
const (
	sweepEvery = 128
	sweepStep  = 2 * sweepEvery
	sweepIdle  = time.Minute
)

// sweeper removes the rows of names that were not used for a while, so that a program that locks "order:1", "order:2" and so on
// has a file of bounded size. It raises meta.swept to at least their versions and voids: a new row starts above it, and what an old
// row would refuse as too late is refused without it.
type sweeper struct {
	idle  time.Duration // how long a name is unused before its row goes
	added int           // rows since the last step
	after string        // where the next step begins
}

// step visits the next rows, and removes those that were changed up to limit and have no claims.
func (s *sweeper) step(st *statements, limit, now int64) error {
	after, end := s.after, ""
	err := st.sweepEnd.query(func(row []sqldriver.Value) { end, _ = row[0].(string) }, after, int64(sweepStep))
	if s.after = end; err != nil || end == "" {
		return err
	}
	if _, err := st.sweepNumbers.exec(limit); err != nil {
		return err
	}
	_, err = st.sweepLocks.exec(after, end, limit, now)
	return err
}
