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
	fresh  bool // there are no tables yet
	legacy bool // an older distlock made the tables, without the column seen
	boot   string
	seen   int64 // the clock was this late, or up to stampEvery later
}

// stampEvery is how often a backend that writes records its clock. A claim ends its TTL after it was written, so at
// most TTL + stampEvery after the record.
const stampEvery = time.Second

var errOtherClock = fmt.Errorf("%w: the clock of this process is behind the clock of a process that uses the lock file: they are in different time namespaces, or on different hosts", driver.ErrInvalid)

// join makes the tables of a new file, turns WAL on, and ends the holds of an earlier boot. It returns the files that
// SQLite uses, and the name of the clock's life. Several processes may do so at once.
func (j *joiner) join(ctx context.Context) (f files, boot string, err error) {
	// The header comes first, so that the database of another program stays untouched.
	if _, err := checkHeader(ctx, j.conn); err != nil {
		return f, "", err
	}
	if err := j.turnWALOn(ctx); err != nil {
		return f, "", err
	}
	r, err := j.read(ctx) // SQLite opens -wal and -shm for it
	if err != nil {
		return f, "", err
	}
	if f, err = identify(j.path); errors.Is(err, os.ErrNotExist) {
		return f, "", fmt.Errorf("%w: %w", errOtherFiles, err) // SQLite shares -shm within a process
	}
	if err != nil {
		return f, "", err
	}
	if done, err := j.joinAsIs(ctx, &f, r); done || err != nil {
		return f, r.boot, err
	}
	boot, err = j.joinAndWrite(ctx, &f)
	return f, boot, err
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
	var columns int
	if err := j.conn.QueryRowContext(ctx, "SELECT count(*) FROM pragma_table_info('meta')").Scan(&columns); err != nil {
		return r, err
	}
	switch columns {
	case 0:
		r.fresh = true
		return r, nil
	case 2:
		r.legacy = true
		err = j.conn.QueryRowContext(ctx, "SELECT boot FROM meta").Scan(&r.boot)
		return r, err
	}
	err = j.conn.QueryRowContext(ctx, "SELECT boot, seen FROM meta").Scan(&r.boot, &r.seen)
	return r, err
}

// joinAsIs joins a file of this boot, which needs no write, for which a busy process could make it wait.
func (j *joiner) joinAsIs(ctx context.Context, f *files, r record) (done bool, err error) {
	asIs := func() bool { return !r.fresh && !r.legacy && r.boot == j.clock.boot && j.clock.reached(r.seen) }
	if !asIs() {
		return false, nil
	}
	if err := j.guard.enter(f); err != nil {
		return false, err
	}
	// Until it had entered, another process might have found itself alone, and have written its own boot.
	if r, err = j.read(ctx); err == nil && asIs() {
		return true, nil
	}
	return false, errors.Join(err, j.guard.leave())
}

func (j *joiner) joinAndWrite(ctx context.Context, f *files) (boot string, err error) {
	if _, err := j.conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return "", err
	}
	boot, err = j.adopt(ctx)
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
		return "", errors.Join(err, j.guard.leave())
	}
	return boot, nil
}

// adopt decides, in a transaction, whether the host was started anew since the file was used. A boot id does not tell:
// a container may have its own. The clock does if it is behind what the file has seen. If it is not, claims are kept:
// those of a boot before end within their TTL, as those of a killed process do.
func (j *joiner) adopt(ctx context.Context) (boot string, err error) {
	if _, err := checkHeader(ctx, j.conn); err != nil {
		return "", err
	}
	r, err := j.read(ctx)
	if err != nil {
		return "", err
	}
	alone, err := j.guard.alone()
	if err != nil {
		return "", err
	}
	var script string
	switch other := r.boot != j.clock.boot; {
	case r.fresh:
		script = fmt.Sprintf("PRAGMA application_id=%d; PRAGMA user_version=%d; %s", applicationID, schemaVersion, schema)
	case r.legacy:
		script = addSeen
		if other {
			script += endAll
		}
	case !j.clock.reached(r.seen):
		if !alone {
			return "", errOtherClock
		}
		script = endAll
	case !other || !alone:
		return r.boot, nil
	}
	if _, err := j.conn.ExecContext(ctx, script); err != nil {
		return "", err
	}
	_, err = j.conn.ExecContext(ctx, "UPDATE meta SET boot = ?, seen = ?", j.clock.boot, j.clock.now())
	return j.clock.boot, err
}
