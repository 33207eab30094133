package pinned

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
	if err := b.check(r.Hold); err != nil {
		return driver.Grant{}, err
	}
	if r.Queue {
		return driver.Grant{}, fmt.Errorf("%w: a place in line", driver.ErrUnsupported)
	}
	l := b.lockOf(r)
	var number uint64
	err := b.detached(ctx, l.Key, func(own context.Context) (err error) {
		number, err = b.attempt(own, l, r)
		return err
	})
	if err != nil {
		return driver.Grant{}, b.fail("acquire", r.Name, err)
	}
	return driver.Grant{Fence: number << spanBits, Fences: 1, Queued: true, TTL: r.TTL}, nil
}

func (b *Backend) lockOf(r driver.Request) Lock {
	return Lock{Name: r.Name, Key: b.Dialect.Key(r.Name), Owner: r.Owner, Meta: r.Meta}
}

// attempt is one try, in the turn of the key.
func (b *Backend) attempt(ctx context.Context, l Lock, r driver.Request) (uint64, error) {
	if h := b.holdOf(r.Hold); h != nil {
		return b.again(ctx, h, r)
	}
	if err := b.exorcise(ctx, r.Owner); err != nil {
		return 0, err
	}
	s, err := b.seat(ctx, l, class(r.TTL))
	if err != nil {
		return 0, driver.Unsent(err) // it is the link that is missing
	}
	defer b.leave(s)
	var number uint64
	err = s.do(ctx, func(own context.Context) error {
		n, ok, err := s.link.Take(own, l)
		switch {
		case err != nil:
			s.undo(l, err)
			return err
		case ok:
			number = n
			b.taken(s, l, r.OnLost)
		}
		return nil
	})
	if err == nil && number == 0 {
		err = &driver.HeldError{}
	}
	return number, err
}

// taken enters a lock that s has got. Its lane is held.
func (b *Backend) taken(s *session, l Lock, onLost func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.enter(s, l, onLost)
}

// again grants a hold once more: a statement on its own link, which gives it a new number.
func (b *Backend) again(ctx context.Context, h *hold, r driver.Request) (uint64, error) {
	if r.TTL > h.s.lease {
		if err := h.s.prolong(ctx, r.TTL); err != nil {
			return 0, err
		}
	}
	var number uint64
	err := h.s.do(ctx, func(own context.Context) (err error) {
		if number, err = h.s.link.Number(own, h.lock); err != nil {
			h.s.check(err)
		}
		return err
	})
	if err == nil {
		h.listen(r.OnLost)
	}
	return number, err
}

// check ends a link that does not answer any more, after an error. Its lane is held.
func (s *session) check(cause error) {
	ctx, cancel := context.WithTimeout(s.b.life, lastResort)
	defer cancel()
	sent := time.Now()
	if err := s.link.Ping(ctx); err != nil {
		s.die(fmt.Errorf("%w: %w", cause, err))
		return
	}
	s.sent = sent
}
