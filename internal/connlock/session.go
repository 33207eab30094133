package connlock

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// errSilent is why a link is given up that the server may have ended.
var errSilent = errors.New("the connection had no answer for the TTL of its holds")

// errGone is the answer on a link that was given up.
var errGone = errors.New("the connection was lost")

// lockConn is a link and what it holds.
type lockConn struct {
	b     *Backend
	conn  Conn
	lease time.Duration // the class that it belongs to

	sem        chan struct{} // holds a token while nobody sends
	maxSilence time.Duration // for how long it may be silent; guarded by lane
	lastSent   time.Time     // when the last answered statement was sent; guarded by lane

	// Guarded by Backend.mu.
	holds       map[string]*connHold // by owner
	attempts    int                  // attempts under way
	dead        bool
	idleSince   time.Time
	isShared    bool // it is among Backend.shared
	longerLease bool // it may be silent for longer than its lease, for the sake of one hold
}

// do sends statements, when no other are under way. They end with the link's trust and not
// with ctx, which bounds the wait for the lane only.
func (s *lockConn) do(ctx context.Context, f func(context.Context) error) error {
	return s.doFor(ctx, 0, f)
}

// doFor is do for statements that take up to extra.
func (s *lockConn) doFor(ctx context.Context, extra time.Duration, f func(context.Context) error) error {
	select {
	case <-s.sem:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { s.sem <- struct{}{} }()
	if s.isDead() {
		return errGone
	}
	sent := time.Now()
	end := s.lastSent.Add(s.maxSilence)
	if !sent.Before(end) {
		s.lose(errSilent)
		return errSilent
	}
	own, cancel := context.WithDeadline(s.b.life, end.Add(extra))
	defer cancel()
	err := f(own)
	if err == nil && own.Err() != nil {
		s.lose(errSilent) // a driver may close the connection then, and still hand over the answer
		return errSilent
	}
	if err == nil && extra > 0 {
		sent = time.Now() // it has been waiting there, not silent
	}
	if err == nil {
		s.answered(sent)
	}
	return err
}

// answered notes when something was sent that has been answered. The lane is held.
func (s *lockConn) answered(sent time.Time) { s.lastSent = sent }

func (s *lockConn) isDead() bool {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	return s.dead
}

// extend is a statement that lets the link live for at least ttl from now on. An error
// ends it.
func (s *lockConn) extend(ctx context.Context, ttl time.Duration) error {
	return s.do(ctx, func(own context.Context) error {
		err := error(nil)
		if ttl > s.maxSilence {
			err = s.conn.Lease(own, ttl)
		} else {
			err = s.conn.Ping(own)
		}
		if err != nil {
			s.lose(err)
			return fmt.Errorf("%w: %w", errGone, err)
		}
		if ttl > s.maxSilence {
			s.maxSilence = ttl
			s.noteLongerLease()
		}
		return nil
	})
}

// noteLongerLease notes that the link is not as others of its lease. Who died with it would keep the next
// waiting for longer than its TTL.
func (s *lockConn) noteLongerLease() {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	s.longerLease = true
}

// undo is for a link after an error: it does not have the lock after that, or is dead. Its
// lane is held.
func (s *lockConn) undo(l Lock, cause error) {
	ctx, cancel := context.WithTimeout(s.b.life, cleanupTime)
	defer cancel()
	if err := s.conn.Undo(ctx, l); err != nil {
		s.lose(errors.Join(cause, err), l.Owner)
	}
}

// lose ends a link: its holds are lost. The owners of what it was asked for may have got it.
// Its lane is held, or nobody can be in it.
func (s *lockConn) lose(cause error, suspects ...string) {
	b := s.b
	b.mu.Lock()
	if s.dead {
		b.mu.Unlock()
		return
	}
	b.remove(s)
	var gone []*connHold
	for owner, h := range s.holds {
		gone = append(gone, h)
		suspects = append(suspects, owner)
		b.removeHold(h)
	}
	b.noteLost(gone)
	closed := b.closed
	b.trackOrphan(s, suspects)
	b.mu.Unlock()
	s.conn.Close()
	if closed {
		return
	}
	for _, h := range gone {
		h.notifyLost()
	}
}

// remove takes a link out of all lists. b.mu is held.
func (b *Backend) remove(s *lockConn) {
	s.dead = true
	delete(b.conns, s)
	b.shared[s.lease] = without(b.shared[s.lease], s)
	b.idle[s.lease] = without(b.idle[s.lease], s)
	if len(b.shared[s.lease]) == 0 {
		delete(b.shared, s.lease)
	}
	if len(b.idle[s.lease]) == 0 {
		delete(b.idle, s.lease)
	}
}

func without(all []*lockConn, s *lockConn) []*lockConn {
	var rest []*lockConn
	for _, o := range all {
		if o != s {
			rest = append(rest, o)
		}
	}
	return rest
}
