package connlock

import (
	"context"
	"fmt"
	"time"

	"github.com/distlock/distlock/driver"
)

// spanBits make a fence of a number: the low bits are for hand-offs, as in all SQL
// strategies, though there are none here.
const spanBits = 10

// Acquire makes one attempt. A grant always says that others may stand in line: the queue
// is the server's, and a hand-off would pass it.
func (b *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := b.validate(r.Hold); err != nil {
		return driver.Grant{}, err
	}
	if r.Queue {
		return driver.Grant{}, fmt.Errorf("%w: a place in line", driver.ErrUnsupported)
	}
	l := b.lockOf(r)
	var number uint64
	err := b.withKey(ctx, l.Key, func(own context.Context) (err error) {
		number, err = b.attempt(own, l, r)
		return err
	})
	if err != nil {
		return driver.Grant{}, b.wrapError("acquire", r.Name, err)
	}
	return driver.Grant{Fence: number << spanBits, Fences: 1, Queued: true, TTL: r.TTL}, nil
}

func (b *Backend) lockOf(r driver.Request) Lock {
	l := Lock{Name: r.Name, Key: b.Dialect.Key(r.Name), Owner: r.Owner, Meta: r.Meta}
	l.SeparateNumber = b.SeparateNumbers || b.isRowLocked(l.Key)
	return l
}

// attempt is one try, in the turn of the key.
func (b *Backend) attempt(ctx context.Context, l Lock, r driver.Request) (uint64, error) {
	if h := b.holdOf(r.Hold); h != nil {
		return b.regrant(ctx, h, l, r)
	}
	if err := b.killOrphanOf(ctx, r.Owner); err != nil {
		return 0, err
	}
	s, err := b.connFor(ctx, l, leaseClass(r.TTL))
	if err != nil {
		return 0, driver.Unsent(err) // it is the link that is missing
	}
	defer b.endAttempt(s)
	h, number, err := b.tryOn(ctx, s, l)
	if err != nil {
		return 0, err
	}
	if number == 0 {
		if number, err = b.writeNumber(ctx, h, l); err != nil {
			b.giveBack(h, err)
			return 0, err
		}
	}
	h.setOnLost(r.OnLost)
	return number, nil
}

// tryOn asks a link for a lock. The number is 0 if it is not written yet.
func (b *Backend) tryOn(ctx context.Context, s *lockConn, l Lock) (h *connHold, number uint64, err error) {
	err = s.do(ctx, func(own context.Context) error {
		n, ok, err := s.conn.TryLock(own, l)
		switch {
		case err != nil:
			s.undo(l, err)
			return err
		case ok:
			number, h = n, b.addHold(s, l)
		}
		return nil
	})
	if err == nil && h == nil {
		err = &driver.HeldError{}
	}
	return h, number, err
}

// addHold enters a lock that s has got. Its lane is held.
func (b *Backend) addHold(s *lockConn, l Lock) *connHold {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.enterHold(s, l, nil)
}

// regrant grants a hold once more: a statement on its own link, which gives it a new number.
func (b *Backend) regrant(ctx context.Context, h *connHold, l Lock, r driver.Request) (uint64, error) {
	if r.TTL > h.conn.lease {
		if err := h.conn.extend(ctx, r.TTL); err != nil {
			return 0, err
		}
	}
	number, err := h.number(ctx, l)
	if err == nil && number == 0 {
		number, err = b.writeNumber(ctx, h, l)
	}
	if err == nil {
		h.setOnLost(r.OnLost)
	}
	return number, err
}

// number asks the hold's link for its next number; 0 if that is to be written elsewhere.
func (h *connHold) number(ctx context.Context, l Lock) (number uint64, err error) {
	if l.SeparateNumber {
		return 0, nil
	}
	err = h.conn.do(ctx, func(own context.Context) (err error) {
		if number, err = h.conn.conn.Number(own, l); err != nil {
			h.conn.pingAfter(err)
		}
		return err
	})
	return number, err
}

// pingAfter ends a link that does not answer any more, after an error. Its lane is held.
func (s *lockConn) pingAfter(cause error) {
	ctx, cancel := context.WithTimeout(s.b.life, cleanupTime)
	defer cancel()
	sent := time.Now()
	if err := s.conn.Ping(ctx); err != nil {
		s.lose(fmt.Errorf("%w: %w", cause, err))
		return
	}
	s.lastSent = sent
}
