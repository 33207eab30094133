package connlock

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
)

// probeLease is the lease of the connections that probe: the default TTL, since they are used for the first locks.
const probeLease = 30 * time.Second

// New makes a backend, after it has checked that two connections exclude each other.
func New(ctx context.Context, c Config) (*Backend, error) {
	b := &Backend{
		Config: c,
		caps: driver.Caps{
			Name: c.Name, Modes: driver.Modes(driver.Exclusive), Fence: true, Session: true, MinTTL: minTTL, MaxTTL: maxTTL,
		},
		holds: map[string]*hold{}, ended: map[string]ending{},
	}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	b.pool = sql.OpenDB(connector{b})
	b.pool.SetMaxIdleConns(maxIdle)
	if err := b.probe(ctx); err != nil {
		b.Close()
		return nil, fmt.Errorf("%s: open: %w", c.Package, err)
	}
	b.goTask(b.watchConns)
	return b, nil
}

// probe takes a lock of its own on two connections: the second must be refused until the first has unlocked.
func (b *Backend) probe(ctx context.Context) error {
	if limit := b.DB.Stats().MaxOpenConnections; limit > 0 && limit < minPool {
		return fmt.Errorf("%w: the pool's limit is %d; locks on connections need %d at least: raise SetMaxOpenConns, or max_connections in a URL", driver.ErrInvalid, limit, minPool)
	}
	one, err := b.connFor(ctx, probeLease)
	if err != nil {
		return err
	}
	defer one.leave()
	two, err := b.connFor(ctx, probeLease)
	if err != nil {
		return err
	}
	defer two.leave()
	l := Lock{Name: "distlock probe " + driver.NewOwner(), Owner: driver.NewOwner(), Probe: true}
	l.Key = b.Dialect.Key(l.Name)
	for _, step := range []struct {
		try   *lockConn
		gets  bool
		after *lockConn // which unlocks then, or nil
	}{{one, true, nil}, {two, false, one}, {two, true, two}} {
		_, ok, err := step.try.conn.TryLock(ctx, l)
		if err == nil && ok != step.gets {
			err = fmt.Errorf("%w: two connections do not exclude each other: the server, or a pooler or proxy before it, does not keep what belongs to a connection", driver.ErrUnsupported)
		}
		if err == nil && step.after != nil {
			err = step.after.conn.Unlock(ctx, l)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// closeTime bounds Close.
const closeTime = 15 * time.Second

// Close closes the connections, and so ends all holds. Work that is under way in Commit ends with an
// error.
func (b *Backend) Close() error {
	b.mu.Lock()
	was := b.closed
	b.closed = true
	b.mu.Unlock()
	if was {
		return nil
	}
	b.cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.closeConns()
	}()
	t := time.NewTimer(closeTime)
	defer t.Stop()
	select {
	case <-done:
		return nil
	case <-t.C:
		return fmt.Errorf("%s: close: a connection has not ended after %v", b.Package, closeTime)
	}
}

// closeConns waits for background tasks, and closes the connections.
func (b *Backend) closeConns() {
	b.tasks.Wait()
	var wg wait.Group
	for _, h := range b.allHolds() {
		wg.Go(h.conn.shutDown)
	}
	wg.Wait()
	b.pool.Close()
}

// shutDown closes a connection. If the caller's work has it, in a statement that may not end, the
// connection is killed through another one. If that fails, it is closed when the work is done.
func (c *lockConn) shutDown() {
	select {
	case <-c.sem:
	default:
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTime)
		defer cancel()
		c.b.Dialect.Kill(ctx, c.conn.ID())
		select {
		case <-c.sem:
		case <-ctx.Done():
			return
		}
	}
	defer func() { c.sem <- struct{}{} }()
	c.lose()
}

// checkInterval is how often connections are checked. For this long two clients may believe that they hold a
// lock, if the server ends a connection and grants its lock at once.
const checkInterval = 50 * time.Millisecond

// watchConns checks connections until the backend is closed. It sends nothing.
func (b *Backend) watchConns() {
	t := time.NewTicker(checkInterval)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			for _, h := range b.allHolds() {
				h.loseIfDead()
			}
		case <-b.ctx.Done():
			return
		}
	}
}

func (b *Backend) allHolds() []*hold {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Collect(maps.Values(b.holds))
}
