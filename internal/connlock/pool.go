package connlock

import (
	"context"
	"fmt"
	"time"

	"github.com/distlock/distlock/driver"
)

// class makes of TTLs that hardly differ one: it rounds to two digits, never down.
func class(ttl time.Duration) time.Duration {
	ttl = min(max(ttl, minTTL), maxTTL)
	step := time.Millisecond
	for step*100 <= ttl {
		step *= 10
	}
	return (ttl + step - 1) / step * step
}

// seat finds a link for an attempt, which may be one with holds; leave says that the
// attempt is over. It refuses what a hold of this process is in the way of: that link would
// get the lock again. Both happen at one moment, so that no hold comes in between.
func (b *Backend) seat(ctx context.Context, l Lock, lease time.Duration) (*session, error) {
	b.mu.Lock()
	if held := b.inTheWay(l); held != nil {
		b.mu.Unlock()
		return nil, held
	}
	if s := b.vacant(lease); s != nil {
		s.users++
		b.mu.Unlock()
		return s, nil
	}
	b.mu.Unlock()
	s, err := b.open(ctx, lease)
	if err != nil {
		return nil, err
	}
	// It is not among the shared ones yet, so it has not got the lock meanwhile.
	b.mu.Lock()
	defer b.mu.Unlock()
	if held := b.inTheWay(l); held != nil {
		b.rest(s)
		return nil, held
	}
	b.share(s)
	s.users++
	return s, nil
}

// inTheWay says that a hold of this process excludes l. b.mu is held.
func (b *Backend) inTheWay(l Lock) error {
	if h := b.keys[l.Key]; h != nil {
		return &driver.HeldError{Holders: []driver.Holder{h.holder()}}
	}
	return nil
}

// vacant is a link for an attempt, or nil if one is to be opened. b.mu is held.
func (b *Backend) vacant(lease time.Duration) *session {
	var least *session
	for _, s := range b.shared[lease] {
		if s.users == 0 && len(s.holds) < maxHolds {
			return s
		}
		if least == nil || s.users < least.users {
			least = s
		}
	}
	if s := b.spare(lease); s != nil {
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
func (b *Backend) share(s *session) {
	if !b.OnePerConn && !s.common && !s.dead {
		s.common = true
		b.shared[s.lease] = append(b.shared[s.lease], s)
	}
}

// spare is a link that nobody uses, and that the server has not ended. b.mu is held.
func (b *Backend) spare(lease time.Duration) *session {
	for n := len(b.idle[lease]); n > 0; n = len(b.idle[lease]) {
		s := b.idle[lease][n-1]
		b.idle[lease] = b.idle[lease][:n-1]
		if time.Since(s.idle) < lease/2 && s.link.Alive() == nil {
			return s
		}
		b.remove(s)
		b.discard(s)
	}
	return nil
}

// leave ends an attempt on a link, or a hold.
func (b *Backend) leave(s *session) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s.users--
	b.settle(s)
}

// settle puts a link aside that is not used any more. b.mu is held.
func (b *Backend) settle(s *session) {
	if s.users > 0 || len(s.holds) > 0 || s.dead {
		return
	}
	s.common = false
	b.shared[s.lease] = without(b.shared[s.lease], s)
	b.rest(s)
}

// rest keeps a link for the next who needs one, for a while. b.mu is held.
func (b *Backend) rest(s *session) {
	if s.longer || len(b.idle[s.lease]) >= maxIdle {
		b.remove(s)
		b.discard(s)
		return
	}
	s.idle = time.Now()
	b.idle[s.lease] = append(b.idle[s.lease], s)
}

// discard closes a link that holds nothing. b.mu is held.
func (b *Backend) discard(s *session) {
	if !b.closed {
		b.tasks.Go(s.link.Close)
		return
	}
	s.link.Close()
}

// room is how many more connections may be taken: one is left for others. b.mu is held.
func (b *Backend) room() int {
	limit := b.DB.Stats().MaxOpenConnections
	if limit <= 0 {
		return maxHolds
	}
	return limit - 1 - len(b.links) - b.opens
}

// open makes a link that is on no list.
func (b *Backend) open(ctx context.Context, lease time.Duration) (*session, error) {
	if s := b.adopt(ctx, lease); s != nil {
		return s, nil
	}
	if err := b.reserve(); err != nil {
		return nil, err
	}
	s, err := b.pin(ctx, lease)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.opens--
	switch {
	case err != nil:
		return nil, err
	case b.closed:
		s.link.Close()
		return nil, driver.ErrClosed
	}
	b.links[s] = struct{}{}
	return s, nil
}

// adopt makes a link of one that nobody uses, of another TTL; nil if there is none. A statement is
// a small part of a connection.
func (b *Backend) adopt(ctx context.Context, lease time.Duration) *session {
	s := b.stray()
	if s == nil {
		return nil
	}
	err := s.do(ctx, func(own context.Context) error {
		s.limit = lease
		return s.link.Lease(own, lease)
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

// stray is a link that nobody uses, of any TTL.
func (b *Backend) stray() *session {
	b.mu.Lock()
	defer b.mu.Unlock()
	for lease := range b.idle {
		if s := b.spare(lease); s != nil {
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
	b.opens++
	return nil
}

// pin takes a connection out of the pool.
func (b *Backend) pin(ctx context.Context, lease time.Duration) (*session, error) {
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
	s := &session{b: b, link: link, lease: lease, limit: lease, sent: sent, lane: make(chan struct{}, 1), holds: map[string]*hold{}}
	s.lane <- struct{}{}
	return s, nil
}
