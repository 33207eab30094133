package pglock

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/distlock/distlock/driver"
)

// poolerPatience bounds the search for a pooler. Who has no connection to spare for that
// long is treated as one that gives each transaction another.
const poolerPatience = 3 * time.Second

// findPooler finds out whether a pooler gives each transaction another connection to the
// server. Two clients tell: one inside a transaction, which must have a connection of its
// own, and one outside, which must have the same as before.
func (s *site) findPooler(ctx context.Context) (pooled bool, err error) {
	if s.limit == 1 {
		return true, nil // as far as can be told
	}
	bounded, cancel := context.WithTimeout(ctx, poolerPatience)
	defer cancel()
	pooled, err = s.tryTwo(bounded)
	switch {
	case err != nil && ctx.Err() == nil && bounded.Err() != nil, code(err) == badProtocol:
		return true, nil // one of statements refuses a transaction
	case err != nil:
		return false, fmt.Errorf("looking for a pooler: %w", explain(err))
	}
	return pooled, nil
}

func (s *site) tryTwo(ctx context.Context) (pooled bool, err error) {
	idle, err := s.db.Conn(ctx)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, giveBack(idle, err)) }()
	busy, err := s.db.Conn(ctx)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, giveBack(busy, err)) }()

	first, err := s.process(ctx, idle)
	if err != nil {
		return false, err
	}
	if _, err := busy.ExecContext(ctx, "BEGIN", s.mode()...); err != nil {
		return false, err
	}
	second, err := s.process(ctx, busy)
	pooled = second == first
	if err == nil && !pooled {
		pooled, err = s.moves(ctx, idle, first)
	}
	_, end := busy.ExecContext(ctx, "ROLLBACK", s.mode()...)
	if err = errors.Join(err, end); err != nil || pooled {
		return pooled, err
	}
	return s.moves(ctx, idle, first)
}

// moves asks a connection some times whose it is: where several take turns it is soon
// that of another process.
func (s *site) moves(ctx context.Context, conn *sql.Conn, was int) (bool, error) {
	for range 2 {
		if is, err := s.process(ctx, conn); err != nil || is != was {
			return err == nil, err
		}
	}
	return false, nil
}

// process is the server's process that answers a connection.
func (s *site) process(ctx context.Context, conn *sql.Conn) (pid int, err error) {
	return pid, conn.QueryRowContext(ctx, "SELECT pg_backend_pid()", s.mode()...).Scan(&pid)
}

// giveBack gives a connection back to the pool, or closes it after an error, since it may
// have an open transaction.
func giveBack(conn *sql.Conn, err error) error {
	if err != nil {
		conn.Raw(func(any) error { return sqldriver.ErrBadConn })
		return nil
	}
	return conn.Close()
}

// unpooled refuses what needs a connection to itself.
func (s *site) unpooled() error {
	if !s.pooled {
		return nil
	}
	return fmt.Errorf("%w: strategy %s needs connections that stay with one process of the server, and a pooler (PgBouncer in transaction mode, say) gives each transaction another, as far as can be told with %s; connect to the server itself, or use strategy %s",
		driver.ErrInvalid, Advisory, s.connections(), Row)
}

func (s *site) connections() string {
	if s.limit == 1 {
		return "the one connection that the pool allows"
	}
	return "two connections"
}
