package connlock

import (
	"context"
	"errors"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
)

// Release releases a lock. After its Commit it returns nil. The lock of another process ends with its
// connection.
func (b *Backend) Release(ctx context.Context, d driver.Hold) error {
	if err := b.errIfClosed(); err != nil {
		return err
	}
	if h := b.holdOf(d.Owner, d.Name); h != nil {
		h.revoked.Store(h.working.Load()) // a Commit under way fails
	}
	err := b.withOwner(ctx, d.Owner, func(own context.Context) error { return b.release(own, d) })
	return b.wrapError("release", d.Name, err)
}

func (b *Backend) release(ctx context.Context, d driver.Hold) error {
	if h := b.holdOf(d.Owner, d.Name); h != nil {
		return h.unlock(ctx)
	}
	switch e, known := b.howEnded(d.Owner); {
	case e.committed:
		return nil
	case known:
		return driver.ErrLost
	}
	b.makeRoom()
	was, err := b.Dialect.KillHolder(ctx, Lock{Name: d.Name, Key: b.Dialect.Key(d.Name), Owner: d.Owner})
	if err == nil && !was {
		err = driver.ErrLost
	}
	return err
}

// unlock releases a hold's lock. What has ended before is lost. A connection that ends later, without an answer, may have
// lost the lock by that.
func (h *hold) unlock(ctx context.Context) error {
	c, sent := h.conn, false
	err := h.do(ctx, func(own context.Context) error {
		h.setOnLost(nil)
		err := c.conn.Alive()
		if err == nil {
			sent, err = true, c.conn.Unlock(own, h.lock)
		}
		if err != nil {
			c.lose()
			return err
		}
		h.end(false) // nothing else is sent for it
		return nil
	})
	if err == nil {
		c.leave()
	}
	if sent {
		return err
	}
	return h.orLost(err)
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
var errBusy = errors.New("its transaction is in use by the caller's work, which must end within the TTL")

func (b *Backend) renew(ctx context.Context, d driver.Hold) error {
	if err := errors.Join(b.errIfClosed(), d.ValidateRenewal(), ctx.Err()); err != nil {
		return err
	}
	h := b.holdOf(d.Owner, d.Name)
	switch {
	case h == nil:
		return driver.ErrLost
	case h.working.Load():
		return errBusy
	}
	return h.orLost(b.detach(ctx, func(own context.Context) error { return h.extend(own, d.TTL) }))
}

// extend lets the connection live on for the longest TTL that its hold was promised. An error of the server ends it.
func (h *hold) extend(ctx context.Context, ttl time.Duration) error {
	c := h.conn
	return h.do(ctx, func(own context.Context) error {
		var err error
		if ttl > c.lease {
			err = c.setLease(own, ttl)
		} else {
			err = c.conn.Ping(own)
		}
		if err != nil {
			c.lose()
		}
		return err
	})
}

// end ends a hold whose connection does not have the lock any more.
func (h *hold) end(committed bool) {
	b := h.conn.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.holds[h.lock.Owner] != h {
		return
	}
	b.remove(h)
	if committed {
		b.remember(h.lock.Owner, true)
	}
}
