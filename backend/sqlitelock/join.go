package sqlitelock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"time"

	lib "modernc.org/sqlite/lib"

	"github.com/distlock/distlock/driver"
)

// joiner opens the tables of a file for one backend.
type joiner struct {
	conn  *sql.Conn
	path  string
	clock clock
	guard *guard
}

// record is the content of the table meta. The clock's life is named by the boot id of the process that began it.
type record struct {
	fresh bool // there are no tables yet
	boot  string
	seen  int64 // the clock was this late, or up to stampEvery later
	ahead int64 // of the clock is the store's, in µs
}

// stampEvery is how often a backend that writes records its clock. A claim ends its TTL after it was written, so at
// most TTL + stampEvery after the record.
const stampEvery = time.Second

var errOtherClock = fmt.Errorf("%w: the clock of this process is behind the clock of a process that uses the lock file: they are in different time namespaces, or on different hosts", driver.ErrInvalid)

// join makes the tables of a new file, turns WAL on, and ends the holds of an earlier boot. It returns the files that
// SQLite uses, and what the file has of the clock. Several processes may do so at once.
func (j *joiner) join(ctx context.Context) (f files, r record, err error) {
	// The header comes first, so that the database of another program stays untouched.
	if _, err := checkHeader(ctx, j.conn); err != nil {
		return f, r, err
	}
	if err := j.turnWALOn(ctx); err != nil {
		return f, r, err
	}
	if r, err = j.read(ctx); err != nil { // SQLite opens -wal and -shm for it
		return f, r, err
	}
	if f, err = identify(j.path); errors.Is(err, os.ErrNotExist) {
		return f, r, fmt.Errorf("%w: %w", errOtherFiles, err) // SQLite shares -shm within a process
	}
	if err != nil {
		return f, r, err
	}
	if done, err := j.joinAsIs(ctx, &f, &r); done || err != nil {
		return f, r, err
	}
	r, err = j.joinAndWrite(ctx, &f)
	return f, r, err
}

// explain finds the reason of a read error in a database whose -wal or -shm is missing.
func explain(g *guard, path string, err error) error {
	if alone, e := g.alone(); resultCode(err) != lib.SQLITE_IOERR || alone || e != nil {
		return err
	}
	f, missing := identify(path)
	if missing == nil {
		if e := g.enter(&f); !errors.Is(e, errOtherFiles) {
			return errors.Join(err, e, g.leave())
		}
	}
	return fmt.Errorf("%w: %w", errOtherFiles, err)
}

func (j *joiner) turnWALOn(ctx context.Context) error {
	var mode string
	if err := j.conn.QueryRowContext(ctx, "PRAGMA journal_mode=WAL").Scan(&mode); err != nil {
		return err
	}
	if mode != "wal" {
		return fmt.Errorf("%w: the disk can't share memory between processes (journal mode %s instead of wal)", driver.ErrInvalid, mode)
	}
	return nil
}

func (j *joiner) read(ctx context.Context) (r record, err error) {
	err = j.conn.QueryRowContext(ctx, "SELECT count(*) = 0 FROM pragma_table_info('meta')").Scan(&r.fresh)
	if err == nil && !r.fresh {
		err = j.conn.QueryRowContext(ctx, "SELECT boot, seen, clock FROM meta").Scan(&r.boot, &r.seen, &r.ahead)
	}
	return r, err
}

// joinAsIs joins a file of this boot, which needs no write, for which a busy process could make it wait.
func (j *joiner) joinAsIs(ctx context.Context, f *files, r *record) (done bool, err error) {
	asIs := func() bool { return !r.fresh && r.boot == j.clock.boot && j.clock.reached(r.seen) }
	if !asIs() {
		return false, nil
	}
	if err := j.guard.enter(f); err != nil {
		return false, err
	}
	// Until it had entered, another process might have found itself alone, and have written its own boot.
	if *r, err = j.read(ctx); err == nil && asIs() {
		return true, nil
	}
	return false, errors.Join(err, j.guard.leave())
}

func (j *joiner) joinAndWrite(ctx context.Context, f *files) (r record, err error) {
	if _, err := j.conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return r, err
	}
	r, err = j.adopt(ctx)
	if err == nil {
		// Before the commit, so that nobody who reads this boot believes to be alone.
		err = j.guard.enter(f)
	}
	if err == nil {
		_, err = j.conn.ExecContext(ctx, "COMMIT")
	}
	if err != nil {
		// Some errors have ended the transaction already.
		_, _ = j.conn.ExecContext(context.WithoutCancel(ctx), "ROLLBACK")
		return r, errors.Join(err, j.guard.leave())
	}
	return r, nil
}

// adopt decides, in a transaction, whether the host was started anew since the file was used. A boot id does not tell:
// a container may have its own. The clock does if it is behind what the file has seen. If it is not, claims are kept:
// those of a boot before end within their TTL, as those of a killed process do.
func (j *joiner) adopt(ctx context.Context) (r record, err error) {
	if _, err := checkHeader(ctx, j.conn); err != nil {
		return r, err
	}
	if r, err = j.read(ctx); err != nil {
		return r, err
	}
	alone, err := j.guard.alone()
	if err != nil {
		return r, err
	}
	ahead := wallMicros() - j.clock.now()/1000
	var script string
	switch reached := j.clock.reached(r.seen); {
	case r.fresh:
		r.ahead, script = ahead, fmt.Sprintf("PRAGMA application_id=%d; PRAGMA user_version=%d; %s", applicationID, schemaVersion, schema)
	case !reached && !alone:
		return r, errOtherClock
	case !reached:
		r.ahead, script = ahead, sqlEnd
	case r.boot == j.clock.boot || !alone:
		return r, nil
	}
	if _, err := j.conn.ExecContext(ctx, script); err != nil {
		return r, err
	}
	r.boot, r.seen = j.clock.boot, j.clock.now()
	_, err = j.conn.ExecContext(ctx, "UPDATE meta SET boot = ?, seen = ?, clock = ?", r.boot, r.seen, r.ahead)
	return r, err
}
