package connlock

import (
	"context"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
)

// Acquire makes one attempt.
func (b *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := b.validate(r); err != nil {
		return driver.Grant{}, err
	}
	var number uint64
	err := b.withOwner(ctx, r.Owner, func(own context.Context) (err error) {
		if h := b.holdOf(r.Owner, r.Name); h != nil {
			number, err = b.regrant(own, h, r)
		} else {
			number, err = b.attempt(own, r)
		}
		return err
	})
	if err != nil {
		return driver.Grant{}, b.wrapError("acquire", r.Name, err)
	}
	g := driver.Grant{Fence: number << claims.SpanBits, Fences: claims.Fences(r), TTL: r.TTL}
	if b.Joins {
		g.Fences = 1 // a hand-off asks for the next one, and so finds out that a Commit has ended the hold
	}
	return g, nil
}

func (b *Backend) validate(r driver.Request) error {
	if err := r.Validate(b.caps); err != nil {
		return err
	}
	return b.errIfClosed()
}

func (b *Backend) lockOf(r driver.Request) Lock {
	return Lock{Name: r.Name, Key: b.Dialect.Key(r.Name), Owner: r.Owner, Meta: r.Meta}
}

// attempt tries to take a lock on a connection without one, and returns the number of the grant. Attempts for one key take
// turns: many at one moment need one connection.
func (b *Backend) attempt(ctx context.Context, r driver.Request) (uint64, error) {
	l := b.lockOf(r)
	leave, err := b.keys.Lock(ctx, l.Key)
	if err != nil {
		return 0, driver.Unsent(err)
	}
	defer leave()
	c, err := b.connFor(ctx, r.TTL)
	if err != nil {
		return 0, driver.Unsent(err) // there is no connection to send it on
	}
	number, ok := uint64(0), false
	err = c.do(ctx, ctx, 0, func(own context.Context) (err error) {
		number, ok, err = c.conn.TryLock(own, l)
		return err
	})
	if err == nil && !ok {
		c.leave()
		return 0, b.refusal(l)
	}
	if err == nil && number == 0 {
		number, err = b.writeNumber(ctx, c, l)
	}
	var h *hold
	if err == nil {
		h, err = b.enter(c, l)
	}
	if err != nil {
		b.closeIdle() // they may have failed, too
		c.giveUp()
		return 0, err
	}
	return number, h.grant(r)
}

// refusal describes the holder, if it is in this process.
func (b *Backend) refusal(l Lock) error {
	held := &driver.HeldError{}
	for _, h := range b.allHolds() {
		if h.lock.Key == l.Key {
			held.Holders = []driver.Holder{{Owner: h.lock.Owner, Mode: driver.Exclusive, Held: time.Since(h.since), Left: -1, Meta: h.lock.Meta}}
		}
	}
	return held
}

// regrant grants a hold once more, with a new number.
func (b *Backend) regrant(ctx context.Context, h *hold, r driver.Request) (number uint64, err error) {
	c, l := h.conn, b.lockOf(r)
	err = h.do(ctx, func(own context.Context) (err error) {
		if r.TTL > c.lease {
			err = c.setLease(own, r.TTL)
		}
		if err == nil {
			number, err = c.conn.Number(own, l)
		}
		if err != nil && c.conn.Ping(own) != nil {
			c.lose()
		}
		return err
	})
	if err == nil && number == 0 {
		number, err = b.writeNumber(ctx, c, l)
	}
	if err == nil {
		err = h.grant(r)
	}
	return number, err
}

// writeNumber writes the number of a lock through another connection, which may take as long as the row is
// locked. The lock's connection can be renewed meanwhile, and is checked afterwards: if it still has
// the lock, no successor has got a smaller number.
func (b *Backend) writeNumber(ctx context.Context, c *lockConn, l Lock) (uint64, error) {
	b.makeRoom()
	number, err := b.Dialect.Number(ctx, l, c.conn.ID())
	if err != nil {
		return 0, err
	}
	return number, c.do(ctx, b.ctx, 0, func(own context.Context) error {
		err := c.conn.Confirm(own)
		if err != nil {
			c.giveUp()
		}
		return err
	})
}

// grant looks at the connection once more: since its last answer the server may have ended it, and granted the lock to a
// successor.
func (h *hold) grant(r driver.Request) error {
	h.loseIfDead()
	return h.setOnLost(r.OnLost)
}
