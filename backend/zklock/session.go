package zklock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/zk"
)

// share is how much longer a session's timeout is than the TTL of its holds. After any
// answered write it is certain that the session lives for another half of its timeout,
// or a renewal says that it is not: see zk.Conn.Deadline.
const share = 2

// session is what all holds of one TTL share: when it ends they end. It is opened for
// the first of them and never replaced: a new one is another session.
type session struct {
	b     *Backend
	ttl   time.Duration // of the holds
	ready chan struct{} // closed when conn or err is set
	conn  *zk.Conn
	err   error

	// Guarded by Backend.mu.
	places int
	idle   time.Time // since when it has none
	reaper *time.Timer
	fresh  []*place // holds whose nodes are to be watched
	ripe   []*place // those among them that come first
	vigil  bool     // and somebody is about to do it
}

// roundUp makes of TTLs that hardly differ one: it rounds to two digits, never down.
func roundUp(ttl time.Duration) time.Duration {
	step := time.Millisecond
	for step*100 <= ttl {
		step *= 10
	}
	return (ttl + step - 1) / step * step
}

// session is the one for a TTL, which lives.
func (b *Backend) session(ctx context.Context, ttl time.Duration) (*session, error) {
	ttl = min(max(roundUp(ttl), b.caps.MinTTL), b.caps.MaxTTL)
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil, driver.ErrClosed
	}
	s := b.sessions[ttl]
	if s == nil || s.ended() {
		s = &session{b: b, ttl: ttl, ready: make(chan struct{})}
		b.sessions[ttl] = s
		b.tasks.Go(s.live)
	}
	b.mu.Unlock()
	return s, s.await(ctx)
}

// any is a session for questions, about locks that are nobody's here: one that is open,
// or a new one.
func (b *Backend) any(ctx context.Context) (*session, error) {
	b.mu.Lock()
	for _, s := range b.sessions {
		if s.opened() && !s.ended() && time.Now().Before(s.conn.Deadline()) {
			b.mu.Unlock()
			return s, nil
		}
	}
	b.mu.Unlock()
	return b.session(ctx, b.caps.MaxTTL)
}

// opened reports whether it was opened, in vain or not.
func (s *session) opened() bool {
	select {
	case <-s.ready:
		return true
	default:
		return false
	}
}

// ended reports whether it is of no use any more.
func (s *session) ended() bool { return s.opened() && (s.err != nil || s.over()) }

func (s *session) await(ctx context.Context) error {
	select {
	case <-s.ready:
		return s.err
	case <-ctx.Done():
		return fmt.Errorf("zklock: opening a session: %w", ctx.Err())
	}
}

// live opens the session and waits for its end, which is that of all its holds.
func (s *session) live() {
	b := s.b
	ctx, cancel := context.WithTimeout(b.life, b.opts.timeout)
	defer cancel()
	conn, err := zk.Dial(ctx, b.opts.config(s.ttl*share))
	if err == nil && conn.Timeout() < s.ttl*share {
		err = fmt.Errorf("%w: the server grants sessions of %v only", driver.ErrInvalid, conn.Timeout())
		b.bid(conn)
	}
	if err != nil {
		s.err = b.opts.tell(err)
		b.forget(s)
		close(s.ready)
		return
	}
	s.conn = conn
	close(s.ready)
	b.mu.Lock()
	s.rest()
	b.mu.Unlock()
	select {
	case <-conn.Done():
	case <-b.life.Done():
		b.bid(conn)
	}
	b.bury(s)
}

// bid says goodbye. The server ends the session's nodes at once if it hears of it.
func (b *Backend) bid(conn *zk.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), goodbye)
	defer cancel()
	conn.Close(ctx) // without an answer the session ends by its timeout
}

// goodbye bounds the wait for the server's answer when a session is closed.
const goodbye = 3 * time.Second

// forget makes room for a successor.
func (b *Backend) forget(s *session) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sessions[s.ttl] == s {
		delete(b.sessions, s.ttl)
	}
	if s.reaper != nil {
		s.reaper.Stop()
	}
}

// bury ends all places of a session, and tells those who held.
func (b *Backend) bury(s *session) {
	b.forget(s)
	b.mu.Lock()
	var gone []*place
	for owner, p := range b.places {
		if p.s == s {
			gone = append(gone, p)
			delete(b.places, owner)
		}
	}
	closed := b.closed
	b.mu.Unlock()
	for _, p := range gone {
		p.end(!closed)
	}
}

// over reports whether the session has ended, as a fact.
func (s *session) over() bool {
	select {
	case <-s.conn.Done():
		return true
	default:
		return false
	}
}

// idleTime is how long a session without places stays open.
const idleTime = time.Minute

// rest lets a session end that nobody comes to use. b.mu is held.
func (s *session) rest() {
	if s.places > 0 {
		return
	}
	s.idle = time.Now()
	if s.reaper == nil {
		s.reaper = time.AfterFunc(idleTime, s.reap)
	}
}

func (s *session) reap() {
	b := s.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if s.reaper == nil || b.closed || b.sessions[s.ttl] != s {
		return
	}
	if left := idleTime - time.Since(s.idle); s.places > 0 || left > 0 {
		s.reaper.Reset(max(left, idleTime/2))
		return
	}
	delete(b.sessions, s.ttl)
	b.tasks.Go(func() { b.bid(s.conn) })
}

// outlive waits for the end of a session of which an answer has said that it is over.
func (s *session) outlive(ctx context.Context) {
	select {
	case <-s.conn.Done():
	case <-ctx.Done():
	}
}

// sessionOver: err says, as a fact, that everything of the session is gone.
func sessionOver(err error) bool {
	return errors.Is(err, zk.ErrSessionExpired) || errors.Is(err, zk.ErrAuthFailed) || errors.Is(err, zk.ErrClosed)
}
