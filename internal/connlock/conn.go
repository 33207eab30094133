package connlock

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"time"
)

const (
	minPool = 3 // connections of a limited pool: two to probe with, and one for others

	// maxIdle and idleTime bound the idle connections that are kept. Those of short TTLs are closed sooner, before the server
	// ends them, which it would log.
	maxIdle  = 16
	idleTime = 10 * time.Second
)

var (
	// errSilent: the server may have ended the connection by now.
	errSilent = errors.New("the connection had no answer for the TTL of its hold")

	errGone = errors.New("the connection was lost")
)

// connector opens the connections of Backend.pool. database/sql keeps the idle ones.
type connector struct{ b *Backend }

// Connect takes a connection out of the user's pool and prepares it.
func (o connector) Connect(ctx context.Context) (sqldriver.Conn, error) {
	raw, err := o.b.DB.Conn(ctx)
	if err != nil {
		return nil, err
	}
	sent := time.Now()
	conn, err := o.b.Dialect.NewConn(ctx, raw, probeLease)
	if err != nil {
		Discard(raw)
		return nil, err
	}
	c := &lockConn{b: o.b, conn: conn, lease: probeLease, lastSent: sent, sem: make(chan struct{}, 1)}
	c.sem <- struct{}{}
	return c, nil
}

func (o connector) Driver() sqldriver.Driver { return o.b.DB.Driver() }

// lockConn is a connection for one lock.
type lockConn struct {
	b     *Backend
	conn  Conn
	owner *sql.Conn // by which Backend.pool has given it out

	sem      chan struct{} // holds a token while no statement is sent
	lease    time.Duration // the silence after which the server ends it; guarded by sem
	lastSent time.Time     // when the last answered statement was sent; guarded by sem

	// Guarded by Backend.mu.
	hold *hold // or nil
	dead bool
}

// Prepare and Begin are not used.
func (c *lockConn) Prepare(string) (sqldriver.Stmt, error) { return nil, errors.ErrUnsupported }

func (c *lockConn) Begin() (sqldriver.Tx, error) { return nil, errors.ErrUnsupported }

// Close closes the connection. database/sql calls it.
func (c *lockConn) Close() error {
	c.conn.Close()
	return nil
}

// ResetSession refuses an idle connection that the server has ended, or ends soon.
func (c *lockConn) ResetSession(context.Context) error {
	if time.Since(c.lastSent) > c.lease/2 || !c.IsValid() {
		return sqldriver.ErrBadConn
	}
	return nil
}

// IsValid reports whether the connection may be kept.
func (c *lockConn) IsValid() bool { return !c.isDead() && c.conn.Alive() == nil }

// connFor returns a connection without a lock, for a TTL. It ends with leave, or with lose.
func (b *Backend) connFor(ctx context.Context, ttl time.Duration) (*lockConn, error) {
	limit := b.DB.Stats().MaxOpenConnections
	b.pool.SetMaxOpenConns(max(limit-1, 0))
	lease := min(max(ttl, minTTL), maxTTL)
	b.pool.SetConnMaxIdleTime(min(idleTime, lease/2))
	turn, full := ctx, limit > 0 && b.pool.Stats().InUse >= limit-1
	if full {
		var end func()
		turn, end = context.WithTimeout(ctx, lease/6) // a call has about twice as long
		defer end()
	}
	owner, err := b.pool.Conn(turn)
	if err != nil && full {
		return nil, fmt.Errorf("the pool's limit of %d connections leaves no room for another held lock: one is kept for others; raise SetMaxOpenConns, or max_connections in a URL: %w", limit, err)
	}
	if err != nil {
		return nil, err
	}
	var c *lockConn
	owner.Raw(func(raw any) error { c = raw.(*lockConn); return nil })
	c.owner = owner
	if c.lease == lease {
		return c, nil
	}
	err = c.do(ctx, ctx, 0, func(own context.Context) error { return c.setLease(own, lease) })
	if err != nil {
		c.lose()
		b.closeIdle()
		return nil, err
	}
	return c, nil
}

// leave gives up a connection without a lock. It is kept for a while.
func (c *lockConn) leave() { c.owner.Close() }

// closeIdle closes the connections that nothing uses.
func (b *Backend) closeIdle() {
	b.pool.SetMaxIdleConns(-1)
	b.pool.SetMaxIdleConns(maxIdle)
}

// makeRoom closes idle connections if the user's pool has none left for a statement.
func (b *Backend) makeRoom() {
	if s := b.DB.Stats(); s.MaxOpenConnections > 0 && s.InUse >= s.MaxOpenConnections {
		b.closeIdle()
	}
}

// do calls f, which sends statements, while no other statement is sent. turn bounds the wait for that, and ctx the
// statements, which also end when the connection can't be trusted any more. They may take extra time in the server.
func (c *lockConn) do(turn, ctx context.Context, extra time.Duration, f func(context.Context) error) error {
	select {
	case <-c.sem:
	case <-turn.Done():
		return turn.Err()
	}
	defer func() { c.sem <- struct{}{} }()
	if c.isDead() {
		return errGone
	}
	sent := time.Now()
	end := c.lastSent.Add(c.lease)
	if !sent.Before(end) {
		c.lose()
		return errSilent
	}
	own, cancel := context.WithDeadline(ctx, end.Add(extra))
	defer cancel()
	if err := f(own); err != nil {
		return err
	}
	if own.Err() != nil {
		c.lose() // a driver may close the connection then, and still return the answer
		return errSilent
	}
	if extra > 0 {
		sent = time.Now() // it waited in the server, and was not silent
	}
	c.lastSent = sent
	return nil
}

// do is do of the connection, as long as it has the hold's lock. The statements outlive ctx.
func (h *hold) do(ctx context.Context, f func(context.Context) error) error {
	return h.conn.do(ctx, h.conn.b.ctx, 0, func(own context.Context) error {
		if !h.isCurrent() {
			return errGone
		}
		return f(own)
	})
}

func (c *lockConn) isDead() bool {
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	return c.dead
}

// setLease sets the silence after which the server ends the connection. c.sem is held.
func (c *lockConn) setLease(ctx context.Context, lease time.Duration) error {
	err := c.conn.Lease(ctx, lease)
	if err == nil {
		c.lease = lease
	}
	return err
}

// lose closes a connection that has failed, and its hold is lost.
func (c *lockConn) lose() {
	if c.fail() && !c.b.goTask(c.end) {
		c.leave()
	}
}

// giveUp is lose for a connection that may have got a lock that its owner does not know of. It returns when it is over.
func (c *lockConn) giveUp() {
	if c.fail() {
		c.end()
	}
}

// fail ends the hold of a connection that has failed. It reports whether the caller has to close the connection.
func (c *lockConn) fail() bool {
	b := c.b
	b.mu.Lock()
	first := !c.dead
	c.dead = true
	var onLost func()
	if h := c.hold; h != nil {
		b.remove(h)
		b.remember(h.lock.Owner, false)
		onLost = h.onLost
	}
	closed := b.closed
	b.mu.Unlock()
	if onLost != nil && !closed {
		onLost()
	}
	return first
}

// end closes a connection that has failed. The server may not have noticed, so it is asked to end it, too, even if the
// backend closes meanwhile.
func (c *lockConn) end() {
	c.leave()
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTime)
	defer cancel()
	c.b.Dialect.Kill(ctx, c.conn.ID())
}

// loseIfDead ends a hold whose connection the server has closed, or that was silent for too long. It sends nothing. A
// statement under way finds that out by itself.
func (h *hold) loseIfDead() {
	c := h.conn
	select {
	case <-c.sem:
	default:
		return
	}
	defer func() { c.sem <- struct{}{} }()
	if h.isCurrent() && (c.conn.Alive() != nil || time.Since(c.lastSent) >= c.lease) {
		c.lose()
	}
}
