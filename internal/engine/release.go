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
		c := b.end(h, l, o)
		if c == nil || c.Old == tried { // it may have ended; the store's clock says
			var err error
			if l, err = b.read(ctx, h.Name); err != nil {
				return driver.Unsent(err)
			}
			if c = b.end(h, l, own{lost: o.lost}); c == nil {
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
		if done, err := b.ended(ctx, h, c, &l, out); done {
			return err
		}
		o.claim = claims.Claim{}
	}
	return driver.Unsent(errBusy)
}

// end returns what ends an owner's claim, or makes void what was lost; nil: there is nothing to end.
func (b *Backend) end(h driver.Hold, l *lock, o own) *Change {
	c := &Change{Name: h.Name, Ahead: Anything, Lazy: true, Frees: true}
	claim := &o.claim
	if l != nil {
		c.Version = l.version
		if mine := l.Claim(h.Owner); mine != nil {
			claim = mine
		}
		next := l.clone()
		next.Remove(h.Owner)
		c.Wake = b.others(next.wakes(h.Name))
	}
	if claim.Owner != "" {
		limit := lock{Lock: claims.Lock{Limit: o.limit}}
		if l != nil && l.Claim(h.Owner) != nil {
			limit.Limit = l.Limit
		}
		c.Old, c.Before = limit.line(claim), claim.Until/micro
		return c
	}
	if l == nil || !l.fresh || o.lost <= l.void {
		return nil
	}
	c = &Change{Name: h.Name, Version: l.version, Void: o.lost, Since: l.since()}
	c.New, c.Until = l.text()
	return c
}

// ended takes note of the answer to a change that was to end a claim. done is false if that is to be tried again.
func (b *Backend) ended(ctx context.Context, h driver.Hold, c *Change, l **lock, out Outcome) (done bool, err error) {
	var next *lock
	switch {
	case out.Done && out.Untold:
	case out.Done && !out.Other && *l != nil:
		next = (*l).clone()
		next.Remove(h.Owner)
		next, err = next.became(out, h.Owner)
	default:
		next, err = see(out.Seen)
	}
	*l = next
	if b.memory.remember(h.Name, next); out.Waits {
		b.memory.waits(h.Name)
	}
	switch {
	case out.Done && c.Old == "": // whatever was lost does not come any more
		b.memory.keep(h.Owner, next, nil)
		return true, driver.ErrLost
	case out.Done:
		b.memory.keep(h.Owner, next, nil)
		if err == nil {
			b.wake(ctx, h.Name, c.Wake, next)
		}
		return true, nil
	case err != nil:
		return true, driver.Unsent(err)
	}
	return false, nil
}
