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

// change runs a prepared statement that changes rows and commits by itself. id is what it
// made the insert id of a row that it meant, also if that was as it should be, and is not
// among the n changed ones.
func (s *site) change(ctx context.Context, stmt *sql.Stmt, args []any) (n, id int64, err error) {
	if err := s.checkSize(args); err != nil {
		return 0, 0, err
	}
	err = insist(ctx, func() error {
		n, id, err = s.changeOnce(ctx, stmt, args)
		return err
	})
	if why := hopelessCall(err); why != "" {
		err = fmt.Errorf("%w: %s: %w", driver.ErrInvalid, why, err)
	}
	return n, id, err
}

// changeOnce is change without another try.
func (s *site) changeOnce(ctx context.Context, stmt *sql.Stmt, args []any) (n, id int64, err error) {
	res, err := stmt.ExecContext(ctx, args...)
	if err != nil {
		return 0, 0, err
	}
	n, err = res.RowsAffected()
	if err == nil {
		id, err = res.LastInsertId()
	}
	return n, id, err
}

// argSize is what a parameter takes beside its bytes, and more.
const argSize = 16

// checkSize refuses what the server would answer by closing the connection.
func (s *site) checkSize(args []any) error {
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
	if s.server.packet > 0 && size > s.server.packet {
		return fmt.Errorf("%w: %s: %d bytes, at most %d are possible", driver.ErrInvalid, packetTooLarge, size, s.server.packet)
	}
	return nil
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

// longerSQL is the end of a hold that lives for the first parameter, in µs, from the
// statement's start on, and not less long than before unless the second one is 0. The
// insert id tells what the first parameter leads to.
func longerSQL(column string) string {
	return "GREATEST(LAST_INSERT_ID(" + clockSQL + " + ?), IF(?, COALESCE(" + column + ", 0), 0))"
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
