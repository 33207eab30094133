package pglock

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/distlock/distlock/driver"
)

// poolerPatience bounds the search for a pooler. Who has no connection to spare for that
// long is treated as one that gives each transaction another, unless it seems to be the server itself.
const poolerPatience = 5 * time.Second

// findPooler finds out whether a pooler gives each transaction another connection to the
// server. Two clients tell: one inside a transaction, which must have a connection of its
// own, and one outside, which must have the same as before.
func (s *database) findPooler(ctx context.Context) (pooled bool, err error) {
	if s.limit == 1 {
		return true, nil // as far as can be told
	}
	bounded := ctx
	if !s.unproxied {
		var cancel context.CancelFunc
		bounded, cancel = context.WithTimeout(ctx, poolerPatience)
		defer cancel()
	}
	pooled, err = s.tryTwo(bounded)
	if err == nil && !pooled && s.pgx && !s.unproxied {
		pooled, err = s.deaf(bounded)
	}
	switch {
	case err != nil && ctx.Err() == nil && bounded.Err() != nil, sqlState(err) == badProtocol:
		return true, nil // one of statements refuses a transaction
	case err != nil:
		return false, fmt.Errorf("looking for a pooler: %w", explain(err))
	}
	return pooled, nil
}

// rounds is how often two clients are compared. A pooler that is busy may by chance give
// one of them the same connection some times.
const rounds = 5

func (s *database) tryTwo(ctx context.Context) (pooled bool, err error) {
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
	was, err := s.process(ctx, idle)
	for i := 0; err == nil && !pooled && i < rounds; i++ {
		pooled, err = s.compare(ctx, idle, busy, was)
	}
	return pooled, err
}

// compare is one round.
func (s *database) compare(ctx context.Context, idle, busy *sql.Conn, was int) (bool, error) {
	if _, err := busy.ExecContext(ctx, "BEGIN", s.queryArgs()...); err != nil {
		return false, err
	}
	other, err := s.process(ctx, busy)
	if err != nil {
		return false, err
	}
	still := was
	if other != was {
		still, err = s.process(ctx, idle)
	}
	if _, end := busy.ExecContext(ctx, "ROLLBACK", s.queryArgs()...); err != nil || end != nil {
		return false, errors.Join(err, end)
	}
	// Where several take turns it is soon that of another process.
	after, err := s.process(ctx, idle)
	return other == was || still != was || after != was, err
}

// deaf finds out whether a connection that waits is told nothing. It is what remains of a
// pooler that two clients have failed to find, while many others used it.
func (s *database) deaf(ctx context.Context) (deaf bool, err error) {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	pg, err := pgxOf(conn)
	if err != nil {
		return false, err
	}
	defer pg.Close(ctx) // so that nobody else hears it
	channel := fmt.Sprintf("distlock_probe_%x", rand.Uint64())
	if err := pg.PgConn().Exec(ctx, "LISTEN "+channel).Close(); err != nil {
		return false, err
	}
	if _, err := s.db.ExecContext(ctx, "NOTIFY "+channel, s.queryArgs()...); err != nil {
		return false, err
	}
	_, err = pg.WaitForNotification(ctx)
	return false, err // at the end of ctx it is taken for deaf
}

// process is the server's process that answers a connection.
func (s *database) process(ctx context.Context, conn *sql.Conn) (pid int, err error) {
	return pid, conn.QueryRowContext(ctx, "SELECT pg_backend_pid()", s.queryArgs()...).Scan(&pid)
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
func (s *database) unpooled() error {
	if !s.pooled {
		return nil
	}
	return fmt.Errorf("%w: strategy %s needs connections that stay with one process of the server, and a pooler (PgBouncer in transaction mode, say) gives each transaction another, as far as can be told with %s; connect to the server itself, or use strategy %s",
		driver.ErrInvalid, Advisory, s.connections(), Row)
}

func (s *database) connections() string {
	if s.limit == 1 {
		return "the one connection that the pool allows"
	}
	return "two connections"
}
