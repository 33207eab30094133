package mysqllock

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/distlock/distlock/driver"
)

// site is the database that locks are kept in, as the strategies get it.
type site struct {
	db     *sql.DB
	opts   Options // complete
	server server
	name   string // for Caps.Name: the same from every process
	owned  bool   // db was made by Open
}

// make makes the strategy that the options name.
func (s *site) make(ctx context.Context) (strategy, error) {
	if err := s.checkStrategy(ctx); err != nil {
		return nil, err
	}
	switch s.opts.Strategy {
	case Row:
		return newRow(ctx, s)
	case UniqueIndex:
		return newUnique(ctx, s)
	case Version:
		return newVersion(ctx, s)
	case ForUpdate:
		return newForUpdate(ctx, s)
	case Session:
		return newSession(ctx, s)
	}
	return nil, fmt.Errorf("%w: strategy %q", driver.ErrInvalid, s.opts.Strategy)
}

// change runs a prepared statement that changes rows and commits by itself. It returns the number
// of changed rows, and the insert id that the statement set for a row, changed or not.
func (s *site) change(ctx context.Context, stmt *sql.Stmt, args []any) (n, id int64, err error) {
	size := int64(0)
	for _, a := range args {
		size += argSize
		switch a := a.(type) {
		case string:
			size += int64(len(a))
		case []byte:
			size += int64(len(a))
		}
	}
	return s.changeSized(ctx, size, func() (sql.Result, error) { return stmt.ExecContext(ctx, args...) })
}

// argSize is more than a parameter takes beside its bytes.
const argSize = 16

// changeText is change for a text without parameters.
func (s *site) changeText(ctx context.Context, text string) (n, id int64, err error) {
	return s.changeSized(ctx, int64(len(text)), func() (sql.Result, error) { return s.db.ExecContext(ctx, text) })
}

// changeSized refuses a statement to which the server would respond by closing the connection.
func (s *site) changeSized(ctx context.Context, size int64, run func() (sql.Result, error)) (n, id int64, err error) {
	if s.server.packet > 0 && size > s.server.packet {
		return 0, 0, fmt.Errorf("%w: %s: %d bytes, at most %d are possible", driver.ErrInvalid, packetTooLarge, size, s.server.packet)
	}
	err = retryUndone(ctx, func() error {
		n, id, err = changed(run())
		return err
	})
	if why := hopelessCall(err); why != "" {
		err = fmt.Errorf("%w: %s: %w", driver.ErrInvalid, why, err)
	}
	return n, id, err
}

func changed(res sql.Result, err error) (n, id int64, _ error) {
	if err != nil {
		return 0, 0, err
	}
	n, err = res.RowsAffected()
	if err == nil {
		id, err = res.LastInsertId()
	}
	return n, id, err
}

// checkStrategy refuses a strategy that the server, or what is in front of it, can't have.
func (s *site) checkStrategy(ctx context.Context) error {
	switch s.opts.Strategy {
	case ForUpdate, Session:
		if err := s.refuseWriters(ctx); err != nil {
			return err
		}
		return s.probeSessions(ctx)
	case UniqueIndex:
		return s.refuseWriters(ctx)
	}
	return nil // a change of one row by one statement is safe everywhere
}

// clockSQL is the server's clock in µs since 1970, as of the statement's start.
const clockSQL = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"

// longerSQL returns the end of a hold that lasts for ttl, in µs, from the statement's start on. If
// keep is 1 and not 0, the hold ends no earlier than before. The insert id becomes the end that
// ttl alone leads to.
func longerSQL(column, ttl, keep string) string {
	return "GREATEST(LAST_INSERT_ID(" + clockSQL + " + " + ttl + "), IF(" + keep + ", COALESCE(" + column + ", 0), 0))"
}

// skipLocked makes a SELECT … FOR UPDATE leave out rows that a transaction of somebody else
// has locked; empty if the server has no such words.
func (v server) skipLocked() string {
	if !v.mariaDB && v.major < 8 {
		return ""
	}
	return "SKIP LOCKED"
}

// updateJoin begins an UPDATE of a table that is joined with one that is read in full, which
// sessions with sql_safe_updates would refuse.
func (v server) updateJoin() string {
	if v.mariaDB {
		return "SET STATEMENT sql_safe_updates = 0 FOR UPDATE"
	}
	return "UPDATE /*+ SET_VAR(sql_safe_updates = 0) */" // a comment to MySQL 5.7
}
