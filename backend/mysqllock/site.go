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

// checkStrategy refuses a strategy that the server, or what is in front of it, can't have.
func (s *site) checkStrategy(ctx context.Context) error {
	switch s.opts.Strategy {
	case ForUpdate, Session:
		if err := s.refuseGalera(); err != nil {
			return err
		}
		return s.probeSessions(ctx)
	case UniqueIndex:
		return s.refuseGalera()
	}
	return nil // a change of one row by one statement is safe everywhere
}

// clockSQL is the server's clock in µs since 1970, as of the statement's start.
const clockSQL = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"

// endSQL is the end of a hold that lives for two parameters, which are one number of µs,
// from the statement's start on. If a later call of the same owner was faster its end, which
// the client may trust, is not taken back. SYSDATE is local time: where it jumps the end that
// is there is the bound.
func endSQL(column string) string {
	const waited = "TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6))"
	return "GREATEST(" + clockSQL + " + ?, LEAST(COALESCE(" + column + ", 0), " + clockSQL + " + " + waited + " + ?))"
}
