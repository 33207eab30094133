package connlock

import (
	"context"
	"errors"
	"fmt"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
	"github.com/distlock/distlock/internal/wait"
)

// Acquire makes one attempt.
func (b *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := r.Validate(b.caps); err != nil {
		return driver.Grant{}, err
	}
	var number uint64
	err := b.call(ctx, r.Owner, func(own context.Context) (err error) {
		number, err = b.attempt(own, r)
		return err
	})
	if err != nil {
		return driver.Grant{}, b.wrapError("acquire", r.Name, err)
	}
	g := driver.Grant{Fence: number << claims.SpanBits, Fences: claims.Fences(r), TTL: r.TTL}
	if b.InTx {
		g.Fences = 1 // a hand-off asks for the next one, and so finds out that a Commit has ended the hold
	}
	return g, nil
}

// attempt tries to take a lock, or grants a hold once more, and returns the number of the grant.
func (b *Backend) attempt(ctx context.Context, r driver.Request) (number uint64, err error) {
	c, ok := b.holdOf(r.Owner), true
	var refused error // of a number for a hold, which lives on
	again := func(own context.Context) (err error) {
		if r.TTL > c.lease {
			err = c.setLease(own, r.TTL)
		}
		if err == nil {
			number, refused = c.Number(own, c.lock)
		}
		if refused != nil {
			err = c.Ping(own)
		}
		return err
	}
	first := func(own context.Context) (err error) {
		number, ok, err = c.TryLock(own, c.lock)
		return err
	}
	if c != nil {
		err = c.do(b.ctx, 0, again)
	} else if c, err = b.take(ctx, Lock{r.Name, r.Owner}, r.TTL); err != nil {
		return 0, driver.Unsent(err) // there is no connection to send it on
	} else {
		err = c.do(ctx, 0, first)
	}
	if err == nil && !ok {
		c.leave()
		return 0, &driver.HeldError{}
	}
	if err == nil {
		err = c.enter(r.OnLost)
	}
	if err != nil {
		b.closeIdle()
		c.giveUp(c.lease)
		return 0, err
	}
	return number, refused
}

// Renew sends a statement on the connection of each hold.
func (b *Backend) Renew(ctx context.Context, holds []driver.Hold) []error {
	errs := make([]error, len(holds))
	var wg wait.Group
	for i, d := range holds {
		wg.Go(func() { errs[i] = b.wrapError("renew", d.Name, b.renew(ctx, d)) })
	}
	wg.Wait()
	return errs
}

// errBusy is returned for a hold whose connection is in use by the caller's work.
var errBusy = errors.New("its connection is in use by the caller's work, which must end within the TTL")

func (b *Backend) renew(ctx context.Context, d driver.Hold) error {
	if err := d.ValidateRenewal(); err != nil {
		return err
	}
	if c := b.holdOf(d.Owner); c != nil && c.working.Load() {
		return errBusy
	}
	return b.call(ctx, d.Owner, func(context.Context) error {
		c := b.holdOf(d.Owner)
		if c == nil {
			return driver.ErrLost
		}
		return c.lostBy(c.do(b.ctx, 0, func(own context.Context) error {
			if d.TTL > c.lease {
				return c.setLease(own, d.TTL)
			}
			return c.Ping(own)
		}))
	})
}

// lostBy loses the hold of a connection that has failed.
func (c *lockConn) lostBy(err error) error {
	if err == nil {
		return nil
	}
	c.lose()
	return fmt.Errorf("%w: %w", driver.ErrLost, err)
}

// Release releases a lock. After a Commit that has ended the hold it returns nil. Holds of other processes are not known.
func (b *Backend) Release(ctx context.Context, d driver.Hold) error {
	err := b.call(ctx, d.Owner, func(context.Context) error {
		c := b.holdOf(d.Owner)
		switch {
		case c != nil:
			return c.unlock()
		case b.committed(d.Owner):
			return nil
		}
		return driver.ErrLost
	})
	return b.wrapError("release", d.Name, err)
}

// unlock releases a hold's lock. What has ended before is lost. A connection that ends later, without an answer, may have
// lost the lock by that.
func (c *lockConn) unlock() error {
	sent := false
	err := c.do(c.b.ctx, 0, func(own context.Context) error {
		if err := c.Alive(); err != nil {
			return err
		}
		sent = c.exit() // its end is no loss any more
		return c.Unlock(own, c.lock)
	})
	switch {
	case err == nil:
		c.leave()
	case sent:
		c.lose()
	default:
		err = c.lostBy(err)
	}
	return err
}
