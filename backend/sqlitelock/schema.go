package sqlitelock

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/distlock/distlock/driver"
)

// The marks in the file's header that say whose it is: "dlck", and the version of
// the tables.
const (
	applicationID = 0x646c636b
	schemaVersion = 1
)

// In claims, fence is 0 for a place in line, and ticket is 0 for a hold. Times are
// nanoseconds of the clock that meta.boot names. meta.swept is at least the number
// of every lock whose row was swept.
const schema = `
CREATE TABLE meta (
	boot  TEXT NOT NULL,
	swept INTEGER NOT NULL
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
INSERT INTO meta VALUES ('', 0);
`

// setUp makes sure that the file is ours, in WAL mode, and of this boot. Several
// processes may do so at once. It waits for those who write as the writer does.
func setUp(ctx context.Context, conn *sql.Conn, boot string, patience time.Duration) error {
	start := time.Now()
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		err := setUpOnce(ctx, conn, boot)
		if !busy(err) {
			return err
		}
		if time.Since(start) > patience {
			return tooBusy(patience, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-time.After(jitter(pause)):
		}
	}
}

func setUpOnce(ctx context.Context, conn *sql.Conn, boot string) error {
	// A database that isn't ours is left untouched, so look before turning WAL on.
	fresh, err := inspectHeader(ctx, conn)
	if err != nil {
		return err
	}
	var mode string
	if err := conn.QueryRowContext(ctx, "PRAGMA journal_mode=WAL").Scan(&mode); err != nil {
		return err
	}
	if mode != "wal" {
		return fmt.Errorf("%w: the disk can't share memory between processes (journal mode %s instead of wal)", driver.ErrInvalid, mode)
	}
	if !fresh {
		// Nothing to write, mostly; and who writes a lot can keep others from it for long.
		if was, err := bootOf(ctx, conn); err != nil || was == boot {
			return err
		}
	}
	if _, err := conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return err
	}
	err = migrate(ctx, conn, boot)
	if err == nil {
		_, err = conn.ExecContext(ctx, "COMMIT")
	}
	if err != nil {
		// A transaction that failed by itself is over already.
		_, _ = conn.ExecContext(context.WithoutCancel(ctx), "ROLLBACK")
	}
	return err
}

// inspectHeader tells a fresh file from one of ours, and refuses all others.
func inspectHeader(ctx context.Context, conn *sql.Conn) (fresh bool, err error) {
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

// migrate makes the tables in a fresh file, and ends what an earlier boot left.
func migrate(ctx context.Context, conn *sql.Conn, boot string) error {
	fresh, err := inspectHeader(ctx, conn)
	if err != nil {
		return err
	}
	if fresh {
		marks := fmt.Sprintf("PRAGMA application_id=%d; PRAGMA user_version=%d;", applicationID, schemaVersion)
		if _, err := conn.ExecContext(ctx, marks+schema); err != nil {
			return err
		}
	}
	if was, err := bootOf(ctx, conn); err != nil || was == boot {
		return err
	}
	if _, err := conn.ExecContext(ctx, "DELETE FROM claims"); err != nil {
		return err
	}
	_, err = conn.ExecContext(ctx, "UPDATE meta SET boot = ?", boot)
	return err
}

// bootOf is the boot that the file's holds are of.
func bootOf(ctx context.Context, conn *sql.Conn) (was string, err error) {
	err = conn.QueryRowContext(ctx, "SELECT boot FROM meta").Scan(&was)
	return was, err
}
