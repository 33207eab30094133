package connlock

import (
	"context"
	"errors"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
)

// Acquire makes one attempt.
func (b *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := b.validate(r); err != nil {
		return driver.Grant{}, err
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
	g := driver.Grant{Fence: number << claims.SpanBits, Fences: claims.Fences(r), TTL: r.TTL}
	if b.OnePerConn {
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
	return Lock{Name: r.Name, Key: b.Dialect.Key(r.Name), Owner: r.Owner, Meta: r.Meta, SeparateNumber: b.SeparateNumbers}
}

// attempt returns the number of a grant. The mutex of the key is held.
func (b *Backend) attempt(ctx context.Context, l Lock, r driver.Request) (uint64, error) {
	if h := b.holdOf(r.Hold); h != nil {
		return b.regrant(ctx, h, l, r)
	}
	if err := b.killOrphanOf(ctx, r.Owner); err != nil {
		return 0, err
	}
	for range maxConns {
		c, err := b.connFor(ctx, l, leaseClass(r.TTL))
		if err != nil {
			return 0, driver.Unsent(err) // there is no connection to send it on
		}
		number, err := b.attemptOn(ctx, c, l, r)
		if !errors.Is(err, errGoneBefore) {
			return number, err
		}
	}
	return 0, driver.Unsent(errGone)
}

// maxConns bounds how many connections an attempt finds lost before it is made.
const maxConns = 4

// errGoneBefore is for a connection that was lost before the attempt was made on it.
var errGoneBefore = errors.New("the connection was lost before the attempt")

// attemptOn is attempt on a connection.
func (b *Backend) attemptOn(ctx context.Context, c *lockConn, l Lock, r driver.Request) (uint64, error) {
	defer b.endAttempt(c)
	h, number, err := c.tryLock(ctx, l)
	if err != nil {
		return 0, err
	}
	if number == 0 {
		if number, err = b.writeNumber(ctx, h, l); err != nil {
			b.giveBack(h, err)
			return 0, err
		}
	}
	return number, b.grant(h, r)
}

// grant looks at the connection once more: since its last answer the server may have ended it, and granted the lock to a
// successor.
func (b *Backend) grant(h *connHold, r driver.Request) error {
	h.conn.loseIfDead()
	if !b.isCurrent(h) {
		return errGone
	}
	h.setOnLost(r.OnLost)
	return nil
}

// tryLock tries to take a lock on a connection. The number is 0 if it is not written yet.
func (c *lockConn) tryLock(ctx context.Context, l Lock) (h *connHold, number uint64, err error) {
	tried := false
	err = c.do(ctx, func(own context.Context) error {
		tried = true
		own, end := c.whileNeeded(own, ctx)
		defer end()
		n, ok, err := c.conn.TryLock(own, l)
		if err == nil {
			err = own.Err() // a driver may close the connection then, and still return the answer
		}
		switch {
		case err != nil:
			c.undo(l, err)
			return err
		case ok:
			var stale *connHold
			number = n
			c.b.mu.Lock()
			h, stale = c.b.enterHold(c, l)
			c.b.mu.Unlock()
			if stale != nil { // of a watch that was granted since this attempt began, and whose connection has ended
				stale.notifyLost()
			}
		}
		return nil
	})
	switch {
	case err == nil && h == nil:
		err = &driver.HeldError{}
	case !tried && errors.Is(err, errGone):
		err = errGoneBefore
	}
	return h, number, err
}

// whileNeeded returns the context of a statement. It ends with the caller's if the connection has no holds, which would be
// lost with the statement: the connection may have fallen silent, and another one may work. c.sem is held.
func (c *lockConn) whileNeeded(own, caller context.Context) (context.Context, context.CancelFunc) {
	c.b.mu.Lock()
	needed := len(c.holds) > 0
	c.b.mu.Unlock()
	own, cancel := context.WithCancel(own)
	if needed {
		return own, cancel
	}
	stop := context.AfterFunc(caller, cancel)
	return own, func() { stop(); cancel() }
}

// regrant grants a hold once more, with a new number.
func (b *Backend) regrant(ctx context.Context, h *connHold, l Lock, r driver.Request) (number uint64, err error) {
	if r.TTL > h.conn.lease {
		undo := b.promise(h, r.TTL)
		if err := h.conn.extend(ctx); err != nil {
			undo()
			return 0, err
		}
	}
	if !l.SeparateNumber {
		err = h.conn.do(ctx, func(own context.Context) (err error) {
			if number, err = h.conn.conn.Number(own, l); err != nil {
				h.conn.pingAfter(err)
			}
			return err
		})
	}
	if err == nil && number == 0 {
		number, err = b.writeNumber(ctx, h, l)
	}
	if err == nil {
		err = b.grant(h, r)
	}
	return number, err
}

// writeNumber writes the number of a hold through another connection, which may take as long as the row is
// locked. The hold's connection serves its other holds meanwhile, and is checked afterwards: if it still has
// the lock, no successor has got a smaller number.
func (b *Backend) writeNumber(ctx context.Context, h *connHold, l Lock) (uint64, error) {
	b.makeRoom()
	number, err := b.Dialect.Number(ctx, l, h.conn.conn.ID())
	if err != nil {
		return 0, err
	}
	return number, h.conn.do(ctx, func(own context.Context) error {
		err := h.conn.conn.Confirm(own, l)
		if err != nil {
			h.conn.pingAfter(err)
		}
		return err
	})
}

// giveBack ends a hold that was not granted.
func (b *Backend) giveBack(h *connHold, cause error) {
	h.conn.do(b.ctx, func(context.Context) error {
		h.conn.undo(h.lock, cause)
		return nil
	})
	b.endHold(h)
}
