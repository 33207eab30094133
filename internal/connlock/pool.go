package connlock

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/distlock/distlock/driver"
)

const (
	minPool   = 3    // connections of a limited pool: two to probe with, and one for others
	maxShared = 4    // connections for the holds of one TTL; more holds share them
	maxHolds  = 1000 // of one connection
	maxIdle   = 16   // idle connections that are kept
)

// leaseClass rounds a TTL up to two digits, so that holds of similar TTLs can share a connection.
func leaseClass(ttl time.Duration) time.Duration {
	ttl = min(max(ttl, minTTL), maxTTL)
	step := time.Millisecond
	for step*100 <= ttl {
		step *= 10
	}
	return (ttl + step - 1) / step * step
}

// connFor returns a connection for an attempt, which ends with endAttempt. It refuses the attempt if it
// conflicts with a hold of this process, since the server would grant the lock again on the hold's
// connection. That check and the choice are one step under b.mu.
func (b *Backend) connFor(ctx context.Context, l Lock, lease time.Duration) (*lockConn, error) {
	b.mu.Lock()
	if held := b.heldHere(l); held != nil {
		b.mu.Unlock()
		return nil, held
	}
	if c := b.pickConn(lease); c != nil {
		c.attempts++
		b.mu.Unlock()
		return c, nil
	}
	b.mu.Unlock()
	c, err := b.openConn(ctx, lease)
	if err != nil {
		return nil, err
	}
	// The connection is not shared yet, so it can't have got the lock meanwhile. Another one can.
	b.mu.Lock()
	defer b.mu.Unlock()
	if held := b.heldHere(l); held != nil {
		b.keepIdle(c)
		return nil, held
	}
	b.share(c)
	c.attempts++
	return c, nil
}

// heldHere returns an error if a hold of this process excludes l. b.mu is held.
func (b *Backend) heldHere(l Lock) error {
	if h := b.byKey[l.Key]; h != nil {
		return &driver.HeldError{Holders: []driver.Holder{h.holder()}}
	}
	return nil
}

// pickConn returns an open connection for an attempt, or nil if one must be opened. b.mu is held.
func (b *Backend) pickConn(lease time.Duration) *lockConn {
	var least *lockConn
	n := 0
	for _, c := range b.shared {
		if c.lease != lease {
			continue
		}
		n++
		if c.attempts == 0 && len(c.holds) < maxHolds && !c.longerLease {
			return c
		}
		if least == nil || c.before(least) {
			least = c
		}
	}
	if c := b.takeIdle(func(c *lockConn) bool { return c.lease == lease }); c != nil {
		b.share(c)
		return c
	}
	full := n >= maxShared || b.room() <= 0
	if least != nil && full && len(least.holds) < maxHolds {
		return least
	}
	return nil
}

// before reports whether a connection is the better one for an attempt. One that lives longer, for the sake of some holds, is
// the worse one, since others on it would live as long if this process died. Backend.mu is held.
func (c *lockConn) before(other *lockConn) bool {
	switch full := len(c.holds) >= maxHolds; {
	case full != (len(other.holds) >= maxHolds):
		return !full
	case c.longerLease != other.longerLease:
		return !c.longerLease
	}
	return c.attempts < other.attempts
}

// share lets other attempts use a connection, if connections have many locks. b.mu is held.
func (b *Backend) share(c *lockConn) {
	if !b.OnePerConn && !c.dead && !slices.Contains(b.shared, c) {
		b.shared = append(b.shared, c)
	}
}

// takeIdle returns an idle connection that fits and that the server has not ended, or nil. b.mu is held.
func (b *Backend) takeIdle(fits func(*lockConn) bool) *lockConn {
	for _, c := range slices.Backward(slices.Clone(b.idle)) {
		if !fits(c) {
			continue
		}
		if time.Since(c.idleSince) < c.lease/2 && c.conn.Alive() == nil {
			b.idle = without(b.idle, c)
			return c
		}
		b.discard(c)
	}
	return nil
}

// endAttempt ends an attempt on a connection.
func (b *Backend) endAttempt(c *lockConn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c.attempts--
	b.keepIfUnused(c)
}

// endHold removes a hold whose lock was released.
func (b *Backend) endHold(h *connHold) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.byOwner[h.lock.Owner] == h {
		b.removeHold(h)
	}
	b.keepIfUnused(h.conn)
}

// keepIfUnused makes a connection without holds and attempts idle. b.mu is held.
func (b *Backend) keepIfUnused(c *lockConn) {
	if c.attempts > 0 || len(c.holds) > 0 || c.dead {
		return
	}
	b.shared = without(b.shared, c)
	b.keepIdle(c)
}

// keepIdle keeps a connection for a while. b.mu is held.
func (b *Backend) keepIdle(c *lockConn) {
	if c.longerLease || len(b.idle) >= maxIdle {
		b.discard(c)
		return
	}
	c.idleSince = time.Now()
	b.idle = append(b.idle, c)
}

// discard closes a connection without holds. b.mu is held.
func (b *Backend) discard(c *lockConn) {
	b.removeConn(c)
	if !b.closed {
		b.tasks.Go(c.conn.Close)
		return
	}
	c.conn.Close()
}

// room returns how many more connections may be opened: one is left for others. b.mu is held.
func (b *Backend) room() int {
	limit := b.DB.Stats().MaxOpenConnections
	if limit <= 0 {
		return maxHolds
	}
	return limit - 1 - len(b.conns) - b.opening
}

// openConn returns a connection that is neither shared nor idle.
func (b *Backend) openConn(ctx context.Context, lease time.Duration) (*lockConn, error) {
	if c := b.reuseIdle(ctx, lease); c != nil {
		return c, nil
	}
	if err := b.reserve(); err != nil {
		return nil, err
	}
	c, err := b.dial(ctx, lease)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.opening--
	switch {
	case err != nil:
		return nil, err
	case b.closed:
		c.conn.Close()
		return nil, driver.ErrClosed
	}
	b.conns[c] = struct{}{}
	return c, nil
}

// reuseIdle gives an idle connection another lease, which is quicker than opening one. It returns nil
// if there is none.
func (b *Backend) reuseIdle(ctx context.Context, lease time.Duration) *lockConn {
	b.mu.Lock()
	c := b.takeIdle(func(*lockConn) bool { return true })
	b.mu.Unlock()
	if c == nil {
		return nil
	}
	err := c.do(ctx, func(own context.Context) error {
		own, cancel := context.WithTimeout(own, cleanupTime)
		defer cancel()
		defer context.AfterFunc(ctx, cancel)() // it may be silent, and has no holds to lose
		c.maxSilence = lease
		return c.conn.Lease(own, lease)
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		c.lease = lease
		return c
	}
	if !c.dead {
		b.discard(c)
	}
	return nil
}

// reserve counts a connection that will be opened. It closes an idle one if the pool has no room.
func (b *Backend) reserve() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.idle) > 0 && b.room() <= 0 {
		b.discard(b.idle[0])
	}
	if b.room() <= 0 {
		return fmt.Errorf("the pool's limit of %d connections leaves no room for another held lock: one is kept for others; raise SetMaxOpenConns, or max_connections in a URL", b.DB.Stats().MaxOpenConnections)
	}
	b.opening++
	return nil
}

// makeRoom closes an idle connection if the pool has none left for a statement.
func (b *Backend) makeRoom() {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.DB.Stats()
	if s.MaxOpenConnections > 0 && s.InUse >= s.MaxOpenConnections && len(b.idle) > 0 {
		b.discard(b.idle[0])
	}
}

// dial takes a connection out of the pool and prepares it.
func (b *Backend) dial(ctx context.Context, lease time.Duration) (*lockConn, error) {
	raw, err := b.DB.Conn(ctx)
	if err != nil {
		return nil, err
	}
	sent := time.Now()
	conn, err := b.Dialect.NewConn(ctx, raw, lease)
	if err != nil {
		Discard(raw)
		return nil, err
	}
	c := &lockConn{b: b, conn: conn, lease: lease, maxSilence: lease, lastSent: sent, sem: make(chan struct{}, 1), holds: map[string]*connHold{}}
	c.sem <- struct{}{}
	return c, nil
}
