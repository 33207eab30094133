package connlock

import (
	"context"
	"fmt"
	"time"

	"github.com/distlock/distlock/driver"
)

// leaseClass makes of TTLs that hardly differ one: it rounds to two digits, never down.
func leaseClass(ttl time.Duration) time.Duration {
	ttl = min(max(ttl, minTTL), maxTTL)
	step := time.Millisecond
	for step*100 <= ttl {
		step *= 10
	}
	return (ttl + step - 1) / step * step
}

// connFor finds a link for an attempt, which may be one with holds; leave says that the
// attempt is over. It refuses what a hold of this process is in the way of: that link would
// get the lock again. Both happen at one moment, so that no hold comes in between.
func (b *Backend) connFor(ctx context.Context, l Lock, lease time.Duration) (*lockConn, error) {
	b.mu.Lock()
	if held := b.heldHere(l); held != nil {
		b.mu.Unlock()
		return nil, held
	}
	if s := b.pickShared(lease); s != nil {
		s.attempts++
		b.mu.Unlock()
		return s, nil
	}
	b.mu.Unlock()
	s, err := b.openConn(ctx, lease)
	if err != nil {
		return nil, err
	}
	// It is not among the shared ones yet, so it has not got the lock meanwhile.
	b.mu.Lock()
	defer b.mu.Unlock()
	if held := b.heldHere(l); held != nil {
		b.keepIdle(s)
		return nil, held
	}
	b.share(s)
	s.attempts++
	return s, nil
}

// heldHere says that a hold of this process excludes l. b.mu is held.
func (b *Backend) heldHere(l Lock) error {
	if h := b.byKey[l.Key]; h != nil {
		return &driver.HeldError{Holders: []driver.Holder{h.holder()}}
	}
	return nil
}

// pickShared is a link for an attempt, or nil if one is to be opened. b.mu is held.
func (b *Backend) pickShared(lease time.Duration) *lockConn {
	var least *lockConn
	for _, s := range b.shared[lease] {
		if s.attempts == 0 && len(s.holds) < maxHolds {
			return s
		}
		if least == nil || s.attempts < least.attempts {
			least = s
		}
	}
	if s := b.takeIdle(lease); s != nil {
		b.share(s)
		return s
	}
	full := len(b.shared[lease]) >= maxShared || b.room() <= 0
	if least != nil && full && len(least.holds) < maxHolds {
		return least
	}
	return nil
}

// share lets others use the link too, if links have many locks. b.mu is held.
func (b *Backend) share(s *lockConn) {
	if !b.OnePerConn && !s.isShared && !s.dead {
		s.isShared = true
		b.shared[s.lease] = append(b.shared[s.lease], s)
	}
}

// takeIdle is a link that nobody uses, and that the server has not ended. b.mu is held.
func (b *Backend) takeIdle(lease time.Duration) *lockConn {
	for n := len(b.idle[lease]); n > 0; n = len(b.idle[lease]) {
		s := b.idle[lease][n-1]
		b.idle[lease] = b.idle[lease][:n-1]
		if time.Since(s.idleSince) < lease/2 && s.conn.Alive() == nil {
			return s
		}
		b.remove(s)
		b.discard(s)
	}
	return nil
}

// endAttempt ends an attempt on a link, or a hold.
func (b *Backend) endAttempt(s *lockConn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s.attempts--
	b.keepIfUnused(s)
}

// keepIfUnused puts a link aside that is not used any more. b.mu is held.
func (b *Backend) keepIfUnused(s *lockConn) {
	if s.attempts > 0 || len(s.holds) > 0 || s.dead {
		return
	}
	s.isShared = false
	b.shared[s.lease] = without(b.shared[s.lease], s)
	b.keepIdle(s)
}

// keepIdle keeps a link for the next who needs one, for a while. b.mu is held.
func (b *Backend) keepIdle(s *lockConn) {
	if s.longerLease || len(b.idle[s.lease]) >= maxIdle {
		b.remove(s)
		b.discard(s)
		return
	}
	s.idleSince = time.Now()
	b.idle[s.lease] = append(b.idle[s.lease], s)
}

// discard closes a link that holds nothing. b.mu is held.
func (b *Backend) discard(s *lockConn) {
	if !b.closed {
		b.tasks.Go(s.conn.Close)
		return
	}
	s.conn.Close()
}

// room is how many more connections may be taken: one is left for others. b.mu is held.
func (b *Backend) room() int {
	limit := b.DB.Stats().MaxOpenConnections
	if limit <= 0 {
		return maxHolds
	}
	return limit - 1 - len(b.conns) - b.opening
}

// openConn makes a link that is on no list.
func (b *Backend) openConn(ctx context.Context, lease time.Duration) (*lockConn, error) {
	if s := b.reuseIdle(ctx, lease); s != nil {
		return s, nil
	}
	if err := b.reserve(); err != nil {
		return nil, err
	}
	s, err := b.dial(ctx, lease)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.opening--
	switch {
	case err != nil:
		return nil, err
	case b.closed:
		s.conn.Close()
		return nil, driver.ErrClosed
	}
	b.conns[s] = struct{}{}
	return s, nil
}

// reuseIdle makes a link of one that nobody uses, of another TTL; nil if there is none. A statement is
// a small part of a connection.
func (b *Backend) reuseIdle(ctx context.Context, lease time.Duration) *lockConn {
	s := b.takeAnyIdle()
	if s == nil {
		return nil
	}
	err := s.do(ctx, func(own context.Context) error {
		s.maxSilence = lease
		return s.conn.Lease(own, lease)
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		s.lease = lease
		return s
	}
	if !s.dead {
		b.remove(s)
		b.discard(s)
	}
	return nil
}

// takeAnyIdle is a link that nobody uses, of any TTL.
func (b *Backend) takeAnyIdle() *lockConn {
	b.mu.Lock()
	defer b.mu.Unlock()
	for lease := range b.idle {
		if s := b.takeIdle(lease); s != nil {
			return s
		}
	}
	return nil
}

// reserve takes room for a link, if need be that of one that nobody uses.
func (b *Backend) reserve() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, idle := range b.idle {
		for _, s := range idle {
			if b.room() > 0 {
				break
			}
			b.remove(s)
			b.discard(s)
		}
	}
	if b.room() <= 0 {
		return fmt.Errorf("the pool's limit of %d connections leaves no room for another held lock: one is kept for others; raise SetMaxOpenConns, or max_connections in a URL", b.DB.Stats().MaxOpenConnections)
	}
	b.opening++
	return nil
}

// dial takes a connection out of the pool.
func (b *Backend) dial(ctx context.Context, lease time.Duration) (*lockConn, error) {
	conn, err := b.DB.Conn(ctx)
	if err != nil {
		return nil, err
	}
	sent := time.Now()
	link, err := b.Dialect.NewConn(ctx, conn, lease)
	if err != nil {
		Discard(conn)
		return nil, err
	}
	s := &lockConn{b: b, conn: link, lease: lease, maxSilence: lease, lastSent: sent, sem: make(chan struct{}, 1), holds: map[string]*connHold{}}
	s.sem <- struct{}{}
	return s, nil
}
