package mysqllock

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/unsent"
	"github.com/distlock/distlock/internal/wait"
)

// Numbers of the server's errors.
const (
	errCheckRead    = 1020 // the row changed since it was read
	errNoTable      = 1146
	errLockWait     = 1205
	errDeadlock     = 1213
	errUserDeadlock = 3058
	errReprepare    = 1615
	errBinlogFormat = 1665 // statements of READ COMMITTED can't be logged as statements
	errNoSuchDB     = 1049
	errWrongUser    = 1045
	errNoDBAccess   = 1044
	errNoTableRight = 1142
	errNoColRight   = 1143
	errReadOnly     = 1290 // --read-only, and other options
	errReadOnlyTx   = 1792
	errReadOnlyMode = 1836
	errNoRight      = 1227
	errExpired      = 1820
	errExpiredLogin = 1862

	errPacket         = 1153
	errOutOfRange     = 1264
	errFunctionPacket = 1301
	errBadText        = 1366
	errTooLong        = 1406
	errOverflow       = 1690
)

// number returns the number of the server's error, or 0 for other errors.
func number(err error) uint16 {
	if e := (*mysql.MySQLError)(nil); errors.As(err, &e) {
		return e.Number
	}
	return 0
}

// noRows reports whether a query found no row.
func noRows(err error) bool { return errors.Is(err, sql.ErrNoRows) }

// undone reports whether an autocommitted statement had no effect: it was rolled back, or never sent.
func undone(err error) bool {
	switch number(err) {
	case errDeadlock, errLockWait, errCheckRead, errReprepare:
		return true
	}
	return errors.Is(err, sqldriver.ErrBadConn)
}

// A deadlock's victim that retries at once would meet the same rivals again.
const (
	maxTries   = 12
	firstPause = 500 * time.Microsecond
	maxPause   = 20 * time.Millisecond
)

// retryUndone runs an autocommitted statement, and repeats it while it is undone. The core treats a
// remaining error as an unknown outcome, and retries.
func retryUndone(ctx context.Context, run func() error) error {
	for try := 0; ; try++ {
		err := run()
		if !undone(err) || try == maxTries-1 {
			return err
		}
		if ended := wait.Sleep(ctx, wait.Jitter(wait.Backoff(try, firstPause, maxPause))); ended != nil {
			return fmt.Errorf("%w: %w", ended, err)
		}
	}
}

// finalCallCause returns the reason why a retry of the same call can't succeed; "" if it may.
func finalCallCause(err error) string {
	switch number(err) {
	case errPacket, errFunctionPacket:
		return packetTooLarge
	case errTooLong, errOutOfRange, errOverflow, errBadText:
		return "a value does not fit into its column"
	}
	if errors.Is(err, mysql.ErrPktTooLarge) {
		return packetTooLarge
	}
	return ""
}

const packetTooLarge = "this is more than the server or the pool takes (max_allowed_packet)"

// openError explains why a backend can't be opened. It never shows a password.
func openError(o Options, err error) error {
	if err == nil || driver.Final(err) {
		return err
	}
	if errors.Is(err, mysql.ErrNoTLS) {
		return fmt.Errorf("%w: mysqllock: the server has no TLS: %w", driver.ErrInvalid, err)
	}
	if why := finalCause(o, number(err)); why != "" {
		return fmt.Errorf("%w: mysqllock: %s: %w", driver.ErrInvalid, why, err)
	}
	return fmt.Errorf("mysqllock: open: %w", err)
}

// finalCause returns the reason why opening again can't succeed; "" if it may.
func finalCause(o Options, number uint16) string {
	switch number {
	case errWrongUser:
		return "the server refuses user and password"
	case errExpired, errExpiredLogin:
		return "the password has expired: set a new one with ALTER USER"
	case errNoSuchDB:
		return "there is no such database"
	case errNoDBAccess:
		return "the user may not use this database: GRANT " + neededRights + " on its tables"
	case errNoTableRight, errNoColRight:
		return "the user lacks a right: GRANT " + neededRights + " ON " + o.Table + ", and CREATE for create=true"
	case errReadOnly, errReadOnlyTx, errReadOnlyMode:
		return "the server is read-only: want the primary, not a replica"
	case errBinlogFormat:
		return "the server logs statements, which isolation level READ COMMITTED of strategy forupdate rules out: set binlog_format=ROW, or use another strategy"
	case errNoTable:
		return "table " + o.Table + " is missing: " + remedy(o)
	}
	return ""
}

// neededRights are what a user must be granted on the table of a strategy.
const neededRights = "SELECT, INSERT, UPDATE"

// stale reports whether the server refused a right. It may have been given back since the connection was opened: the
// server looks up rights to a database, and global ones, only then.
func stale(err error) bool {
	switch number(err) {
	case errNoDBAccess, errNoTableRight, errNoColRight, errNoRight, errExpired:
		return true
	}
	return false
}

// unchanged marks an error of a statement that commits by itself with ErrUnsent, if no connection could be opened for it, or
// the server has refused it because of who asks or what there is.
func unchanged(err error) error {
	if stale(err) || finalCause(Options{}, number(err)) != "" {
		return driver.Unsent(err)
	}
	return unsent.Mark(err)
}

// remedy explains how to create the tables.
func remedy(o Options) string {
	return fmt.Sprintf("run `distlock schema mysql --strategy %s --table %s` and feed it to the server, or open with create=true", o.Strategy, o.Table)
}
