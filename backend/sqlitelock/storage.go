package sqlitelock

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
)

// The file's header has the mark "dlck" and the version of the tables.
const (
	applicationID = 0x646c636b
	schemaVersion = 1
)

// In claims, fence is 0 for a place in the queue, and ticket is 0 for a hold. Times are in
// nanoseconds of the clock whose life meta.boot names. meta.seen is a time that this clock has
// reached. meta.swept is at least the number of every lock whose row was swept.
const schema = `
CREATE TABLE meta (
	boot  TEXT NOT NULL,
	swept INTEGER NOT NULL,
	seen  INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE locks (
	name   TEXT PRIMARY KEY,
	kind   INTEGER NOT NULL,
	lim    INTEGER NOT NULL,
	number INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE claims (
	name   TEXT NOT NULL,
	owner  TEXT NOT NULL,
	mode   INTEGER NOT NULL,
	ticket INTEGER NOT NULL,
	fence  INTEGER NOT NULL,
	since  INTEGER NOT NULL,
	until  INTEGER NOT NULL,
	meta   TEXT NOT NULL,
	PRIMARY KEY (name, owner)
) STRICT, WITHOUT ROWID;
INSERT INTO meta VALUES ('', 0, 0);
`

const (
	addSeen = `ALTER TABLE meta ADD COLUMN seen INTEGER NOT NULL DEFAULT 0;`
	endAll  = `DELETE FROM claims;`
)

const (
	// sqlLoad reads all of one name. It returns no row if another boot has taken the file over.
	sqlLoad = `
SELECT l.kind, l.lim, l.number, m.swept, c.owner, c.mode, c.ticket, c.fence, c.since, c.until, c.meta
FROM meta m LEFT JOIN locks l ON l.name = ?1 LEFT JOIN claims c ON c.name = ?1
WHERE m.boot = ?2`

	// sqlNumber reads a name without claims: its number, or if it has no row, the number below which a new one must not begin,
	// negated. It returns no row if the name has claims, or another boot has taken the file over.
	sqlNumber = `
SELECT CASE WHEN l.number IS NULL THEN -m.swept ELSE max(l.number, m.swept) END
FROM meta m LEFT JOIN locks l ON l.name = ?1
WHERE m.boot = ?2 AND NOT EXISTS (SELECT 1 FROM claims c WHERE c.name = ?1)`

	sqlPutLock = `
INSERT INTO locks (name, kind, lim, number) VALUES (?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET kind = excluded.kind, lim = excluded.lim, number = excluded.number`

	sqlPutClaim = `
INSERT INTO claims (name, owner, mode, ticket, fence, since, until, meta) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (name, owner) DO UPDATE SET mode = excluded.mode, ticket = excluded.ticket,
	fence = excluded.fence, since = excluded.since, until = excluded.until, meta = excluded.meta`

	sqlDeleteExpired = `DELETE FROM claims WHERE name = ? AND until <= ?`

	sqlRenew      = `UPDATE claims SET until = max(until, ?) WHERE name = ? AND owner = ? AND fence > 0 AND until > ?`
	sqlRaiseFence = `UPDATE locks SET number = max(number, ?) WHERE name = ?`

	// sqlRelease also returns whether there is a queue. The claim that goes is not part of it: whether
	// it is visible here is undefined.
	sqlRelease = `
DELETE FROM claims WHERE name = ?1 AND owner = ?2
RETURNING until, EXISTS (SELECT 1 FROM claims c WHERE c.name = ?1 AND c.owner <> ?2 AND c.ticket > 0)`

	sqlSweepEnd     = `SELECT max(name) FROM (SELECT name FROM locks WHERE name > ? ORDER BY name LIMIT ?)`
	sqlSweepClaims  = `DELETE FROM claims WHERE name > ? AND name <= ? AND until <= ?`
	sqlSweepNumbers = `UPDATE meta SET swept = max(swept, ?)`
	sqlSweepLocks   = `
DELETE FROM locks WHERE name > ? AND name <= ? AND number <= ?
AND NOT EXISTS (SELECT 1 FROM claims WHERE claims.name = locks.name)`

	sqlStamp = `UPDATE meta SET seen = max(seen, ?) WHERE boot = ?`

	sqlBoot = `SELECT count(*) FROM meta WHERE boot = ?`
	sqlList = `SELECT DISTINCT name FROM claims WHERE name >= ? AND name > ? AND until > ? ORDER BY name LIMIT ?`
)

// clock is the clock by which holds end.
type clock struct {
	// boot names the life of the clock: the boot id, or another one that the file has for this life.
	boot string

	// stops means that the clock begins anew with each boot, and never goes back within one.
	stops bool

	// now returns nanoseconds, the same for all processes of the host.
	now func() int64
}

// reached reports whether the clock can be the one that has reached the time seen.
func (c *clock) reached(seen int64) bool { return !c.stops || c.now() >= seen }

// wallMicros returns the wall clock in µs. It may jump: grants only use it as the lower
// bound of their numbers.
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
	case version != schemaVersion:
		return false, fmt.Errorf("%w: the file has schema version %d, which never existed", driver.ErrInvalid, version)
	}
	return false, nil
}

// lockState is the content of the file for one name.
type lockState struct {
	claims.Lock
	fresh   bool           // there is no row yet
	expired int            // rows of claims that have ended
	sooner  []claims.Claim // claims that end sooner since then
}

// load reads name as of now, with a statement of sqlLoad.
func load(ctx context.Context, s *statement, name, boot string, now int64) (*lockState, error) {
	var l *lockState
	var swept int64
	err := s.query(ctx, func(row []sqldriver.Value) {
		if l == nil {
			l = &lockState{}
		}
		l.Kind, l.Limit, l.Number, swept = driver.Mode(integer(row[0])), int(integer(row[1])), integer(row[2]), integer(row[3])
		if owner, ok := row[4].(string); ok {
			l.Claims = append(l.Claims, claims.Claim{
				Owner: owner, Mode: driver.Mode(integer(row[5])), Place: integer(row[6]), Fence: integer(row[7]),
				Since: integer(row[8]), Until: integer(row[9]), Meta: row[10].(string),
			})
		}
	}, name, boot)
	if err != nil {
		return nil, err
	}
	if l == nil {
		return nil, errAnotherBoot
	}
	l.fresh, l.Number = l.Number == 0, max(l.Number, swept)
	l.expired, l.sooner = l.Expire(now)
	l.Sort()
	return l, nil
}

// read is load for the writer. Most names have no claims, and then one column is enough.
func (s *statements) read(name, boot string, now int64) (l *lockState, err error) {
	err = s.number.query(context.Background(), func(row []sqldriver.Value) {
		n := integer(row[0])
		l = &lockState{Lock: claims.Lock{Number: max(n, -n)}, fresh: n <= 0}
	}, name, boot)
	if l != nil || err != nil {
		return l, err
	}
	return load(context.Background(), s.load, name, boot, now)
}

// integer returns a number; 0 for NULL.
func integer(v sqldriver.Value) int64 {
	n, _ := v.(int64)
	return n
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
func (s *statement) query(ctx context.Context, f func(row []sqldriver.Value), args ...sqldriver.Value) error {
	if err := s.compile(ctx); err != nil {
		return err
	}
	rows, err := s.stmt.QueryContext(ctx, s.bind(args))
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

	number, load, putLock             *statement
	putClaim, deleteExpired           *statement
	renew, stamp, raiseFence, release *statement
	sweepEnd, sweepClaims             *statement
	sweepNumbers, sweepLocks          *statement

	all []*statement
}

// prepare compiles what a short hold uses, which finds out whether the tables are as they should be. A command that holds one
// lock would wait longer for all the others than for these: they are compiled when they are used.
func (s *statements) prepare(ctx context.Context, conn sqldriver.Conn) error {
	s.conn = conn
	for stmt, text := range map[**statement]string{
		&s.begin: "BEGIN IMMEDIATE", &s.commit: "COMMIT", &s.rollback: "ROLLBACK", &s.checkpoint: "PRAGMA wal_checkpoint(PASSIVE)",
		&s.number: sqlNumber, &s.load: sqlLoad, &s.putLock: sqlPutLock, &s.putClaim: sqlPutClaim, &s.deleteExpired: sqlDeleteExpired,
		&s.renew: sqlRenew, &s.stamp: sqlStamp, &s.raiseFence: sqlRaiseFence, &s.release: sqlRelease,
		&s.sweepEnd: sqlSweepEnd, &s.sweepClaims: sqlSweepClaims,
		&s.sweepNumbers: sqlSweepNumbers, &s.sweepLocks: sqlSweepLocks,
	} {
		*stmt = &statement{conn: conn, text: text}
		s.all = append(s.all, *stmt)
	}
	for _, used := range []*statement{s.begin, s.commit, s.rollback, s.number, s.putLock, s.putClaim, s.release} {
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

// sweeper removes the rows of names that were not used for a while, so that a program that
// locks "order:1", "order:2" and so on has a file of bounded size. It raises meta.swept to
// at least their numbers, and every new row starts above it.
type sweeper struct {
	idle  time.Duration // how long a name is unused before its row goes
	added int           // rows since the last step
	after string        // where the next step begins
}

// step visits the next rows, and removes those whose last grant had a number up to limit.
func (s *sweeper) step(st *statements, limit, now int64) error {
	after, end := s.after, ""
	err := st.sweepEnd.query(context.Background(), func(row []sqldriver.Value) { end, _ = row[0].(string) }, after, int64(sweepStep))
	if s.after = end; err != nil || end == "" {
		return err
	}
	if _, err := st.sweepClaims.exec(after, end, now); err != nil {
		return err
	}
	if _, err := st.sweepNumbers.exec(limit); err != nil {
		return err
	}
	_, err = st.sweepLocks.exec(after, end, limit)
	return err
}
