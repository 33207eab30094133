package connlock

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/internal/wait"
)

const (
	// usualLease is that of a fresh connection: the default TTL.
	usualLease = 30 * time.Second

	// maxIdle and idleTime bound the idle connections that are kept.
	maxIdle  = 16
	idleTime = 10 * time.Second
)

// needsOne begins the error of a lock without a connection: the server may accept no more (max_connections).
const needsOne = "no connection for the lock: each lock and each waiter needs one of its own"

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
	conn, err := o.b.Dialect.NewConn(ctx, raw, usualLease)
	if err != nil {
		Discard(raw)
		return nil, err
	}
	return &lockConn{Conn: conn, b: o.b, lease: usualLease, lastSent: sent}, nil
}

func (o connector) Driver() sqldriver.Driver { return o.b.DB.Driver() }

// lockConn is a connection for one lock.
type lockConn struct {
	Conn
	b     *Backend
	place *sql.Conn // by which Backend.pool has given it out

	mu       sync.Mutex    // locked while a statement is sent, and while the caller's work has the connection
	lease    time.Duration // the silence after which the server ends it; guarded by mu
	lastSent time.Time     // when the last answered statement was sent; guarded by mu

	working atomic.Bool // the caller's work has the connection
	spent   atomic.Bool // it has failed, or the caller's work may have changed its settings

	// Guarded by Backend.mu.
	lock   Lock // that it has, or is to get
	dead   bool
	onLost func() // or nil
}

// Prepare and Begin are not used.
func (c *lockConn) Prepare(string) (sqldriver.Stmt, error) { return nil, errors.ErrUnsupported }

func (c *lockConn) Begin() (sqldriver.Tx, error) { return nil, errors.ErrUnsupported }

// ResetSession refuses an idle connection that the server has ended, or ends soon.
func (c *lockConn) ResetSession(context.Context) error {
	if time.Since(c.lastSent) > c.lease/2 || c.Alive() != nil {
		return sqldriver.ErrBadConn
	}
	return nil
}

// IsValid reports whether the connection may be kept.
func (c *lockConn) IsValid() bool { return !c.spent.Load() }

// take returns a connection for a lock. It ends with leave, lose or giveUp.
func (b *Backend) take(ctx context.Context, l Lock, ttl time.Duration) (*lockConn, error) {
	limit := b.DB.Stats().MaxOpenConnections
	lease := min(max(ttl, minTTL), maxTTL)
	b.pool.SetMaxOpenConns(max(limit-1, 0))
	b.pool.SetMaxIdleConns(maxIdle)
	b.pool.SetConnMaxIdleTime(min(idleTime, lease/2)) // the server would log that it ends them
	turn, full := ctx, limit > 0 && b.pool.Stats().InUse >= limit-1
	if full {
		var end func()
		turn, end = context.WithTimeout(ctx, lease/6) // a call has about twice as long
		defer end()
	}
	place, err := b.pool.Conn(turn)
	if err != nil && full {
		err = fmt.Errorf("the pool's limit is %d, and one is kept for others: raise SetMaxOpenConns, or max_connections in a URL: %w", limit, err)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", needsOne, err)
	}
	var c *lockConn
	place.Raw(func(raw any) error { c = raw.(*lockConn); return nil })
	c.place = place
	b.mu.Lock()
	c.lock = l
	b.mu.Unlock()
	if c.lease != lease {
		if err = c.do(ctx, 0, func(own context.Context) error { return c.setLease(own, lease) }); err != nil {
			b.closeIdle()
			c.giveUp(0)
		}
	}
	return c, err
}

// leave gives up a connection without a lock. It is kept for a while.
func (c *lockConn) leave() { c.place.Close() }

// closeIdle closes the connections that nothing uses: they may have failed like one that was used.
func (b *Backend) closeIdle() { b.pool.SetMaxIdleConns(-1) }

// do calls f, which sends statements, as long as the connection can be trusted. They may wait in the server for extra time.
// After an error the connection is not used any more.
func (c *lockConn) do(ctx context.Context, extra time.Duration, f func(context.Context) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	sent := time.Now()
	end := c.lastSent.Add(c.lease)
	if !sent.Before(end) {
		return errSilent
	}
	own, cancel := context.WithDeadline(ctx, end.Add(extra))
	defer cancel()
	if err := f(own); err != nil {
		return err
	}
	if own.Err() != nil {
		return errSilent // a driver may close the connection then, and still return the answer
	}
	if extra > 0 {
		sent = time.Now() // it waited in the server, and was not silent
	}
	c.lastSent = sent
	return nil
}

// setLease sets the silence after which the server ends the connection. It is called by do.
func (c *lockConn) setLease(ctx context.Context, lease time.Duration) error {
	err := c.Lease(ctx, lease)
	if err == nil {
		c.lease = lease
	}
	return err
}

// enter notes that the connection has its lock. It returns errGone if the owner has the lock through another one.
func (c *lockConn) enter(onLost func()) error {
	b := c.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if h := b.holds[c.lock.Owner]; b.ctx.Err() != nil || c.dead || h != nil && h != c {
		return errGone
	}
	b.holds[c.lock.Owner], c.onLost = c, onLost
	return nil
}

// exit notes that the connection does not have its lock any more. It reports whether it had it.
func (c *lockConn) exit() bool {
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	had := c.b.holds[c.lock.Owner] == c
	if had {
		delete(c.b.holds, c.lock.Owner)
	}
	return had
}

// fail closes a connection that has failed, which ends its hold.
func (c *lockConn) fail() {
	b := c.b
	b.mu.Lock()
	first, onLost := !c.dead, c.onLost
	c.dead = true
	b.mu.Unlock()
	if c.exit() && onLost != nil && b.ctx.Err() == nil {
		onLost()
	}
	if first {
		c.spent.Store(true)
		c.leave()
	}
}

// lose ends a hold whose connection has failed.
func (c *lockConn) lose() {
	c.fail()
	c.b.goTask(func() { c.kill() })
}

// giveUp closes a connection that may have got a lock that its owner does not know of. It returns when that is over, or can't be
// found out within a time.
func (c *lockConn) giveUp(within time.Duration) {
	c.fail()
	for began := time.Now(); c.kill() != nil && time.Since(began) < within && wait.Sleep(c.b.ctx, retryPause) == nil; {
	}
}

// kill asks the server to end a connection: it may not have noticed that it was closed.
func (c *lockConn) kill() error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTime)
	defer cancel()
	return c.b.Dialect.Kill(ctx, c.ID())
}

// watchConns looks every moment for connections that the server has closed, or that were silent for too long. It sends nothing,
// and leaves out those with a statement under way, which finds that out by itself.
func (b *Backend) watchConns() {
	for wait.Sleep(b.ctx, checkInterval) == nil {
		for owner, c := range b.allHolds() {
			if !c.mu.TryLock() {
				continue
			}
			if b.holdOf(owner) == c && (time.Since(c.lastSent) >= c.lease || c.Alive() != nil) {
				c.lose()
			}
			c.mu.Unlock()
		}
	}
}
