package engine

import (
	"context"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
)

// Release ends a hold or a place in the queue.
func (b *Backend) Release(ctx context.Context, h driver.Hold) error {
	return b.wrap("release", h.Name, notFinal(b.release(ctx, h)))
}

func (b *Backend) release(ctx context.Context, h driver.Hold) error {
	if err := b.usable(ctx); err != nil {
		return err
	}
	o := b.memory.of(h.Owner)
	l, tried := b.memory.recall(h.Name), ""
	for misses := range maxMisses {
		if err := pause(ctx, misses); err != nil {
			return driver.Unsent(err)
		}
		c, next := b.end(h, l, o)
		if c == nil || c.Old == tried { // it may have ended; the store's clock says
			var err error
			if l, err = b.read(ctx, h.Name); err != nil {
				return driver.Unsent(err)
			}
			if c, next = b.end(h, l, own{lost: o.lost}); c == nil {
				b.memory.remember(h.Name, l)
				b.memory.keep(h.Owner, l, nil)
				return driver.ErrLost
			}
		}
		tried = c.Old
		out, _ := b.swap(ctx, *c)
		if out.Err != nil {
			b.memory.remember(h.Name, nil)
			return out.Err
		}
		var done bool
		var err error
		if l, done, err = b.ended(ctx, h, c, next, out); done {
			return err
		}
		o.claim = claims.Claim{}
	}
	return driver.Unsent(errBusy)
}

// end returns what ends an owner's claim, or makes void what was lost, and the lock after that, if l is known; nil: there is
// nothing to end.
func (b *Backend) end(h driver.Hold, l *lock, o own) (c *Change, next *lock) {
	c = &Change{Name: h.Name, Ahead: Anything, Lazy: true, Frees: true}
	claim, limit := &o.claim, lock{Lock: claims.Lock{Limit: o.limit}}
	if l != nil {
		c.Version = l.version
		if mine := l.Claim(h.Owner); mine != nil {
			claim, limit.Limit = mine, l.Limit
		}
		next = l.clone()
		next.Remove(h.Owner)
		c.Wake = b.others(next.wakes(h.Name))
	}
	if claim.Owner != "" {
		c.Old, c.Before = limit.line(claim), claim.Until/micro
		return c, next
	}
	if l == nil || !l.fresh || o.lost <= l.void {
		return nil, nil
	}
	c = &Change{Name: h.Name, Version: l.version, Void: o.lost, Since: l.since()}
	c.New, c.Until = l.text()
	return c, next
}

// ended takes note of the answer to a change that was to end a claim and to make the lock next. It returns the lock as it is then;
// nil: not known. done is false if the change is to be tried again.
func (b *Backend) ended(ctx context.Context, h driver.Hold, c *Change, next *lock, out Outcome) (l *lock, done bool, err error) {
	switch {
	case out.Done && out.Untold:
	case out.Done && !out.Other && next != nil:
		l, err = next.became(out, h.Owner)
	default:
		l, err = see(out.Seen)
	}
	b.memory.remember(h.Name, l)
	switch {
	case out.Waits:
		b.memory.beside(h.Name, claims.Claim{Mode: driver.Exclusive, Place: 1})
	case out.Untold && h.Mode == driver.Read:
		b.memory.beside(h.Name, aReader)
	}
	switch {
	case out.Done && c.Old == "": // whatever was lost does not come any more
		b.memory.keep(h.Owner, l, nil)
		return l, true, driver.ErrLost
	case out.Done:
		b.memory.keep(h.Owner, l, nil)
		if err == nil {
			b.wake(ctx, h.Name, c.Wake, l)
		}
		return l, true, nil
	case err != nil:
		return l, true, driver.Unsent(err)
	}
	return l, false, nil
}
