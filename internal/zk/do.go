package zk

import (
	"context"
	"fmt"
	"slices"
)

// do asks and waits for the answer. Without an error the call is the caller's to free.
func (c *Conn) do(ctx context.Context, k *call) error {
	if err := c.submit(ctx, k); err != nil {
		return err
	}
	return c.wait(ctx, k)
}

// submit lines up calls to be written one right after the other, or none.
func (c *Conn) submit(ctx context.Context, ks ...*call) error {
	for _, k := range ks {
		if err := c.check(ctx, k); err != nil {
			return c.refuse(ks, k, err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.over(ks[0]); err != nil {
		return c.refuse(ks, ks[0], err)
	}
	for _, k := range ks {
		c.queue = append(c.queue, k)
		if k.watch != nil {
			c.watching(k.watch.spot).asking++
		}
	}
	c.wake()
	return nil
}

func (c *Conn) wake() {
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

// check finds out what is wrong with a call before it is sent.
func (c *Conn) check(ctx context.Context, k *call) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if len(k.frame)-4 > c.cfg.MaxRequest {
		return ErrTooLarge
	}
	if k.path != "" {
		return checkPath(k.path)
	}
	return nil
}

// over is why nothing can be asked any more.
func (c *Conn) over(k *call) error {
	if c.err == nil && c.closing && k.op != opCloseSession {
		return ErrClosed
	}
	return c.err
}

func (c *Conn) refuse(ks []*call, k *call, why error) error {
	err := k.error(fmt.Errorf("%w: %w", ErrNotSent, why))
	for _, k := range ks {
		k.free()
	}
	return err
}

// wait returns when the call is answered or ctx ends. Without an error the call is the
// caller's to free.
func (c *Conn) wait(ctx context.Context, k *call) error {
	select {
	case <-k.done:
	case <-ctx.Done():
		if err := c.giveUp(k, ctx.Err()); err != nil {
			return err
		}
		<-k.done
	}
	if k.err == nil {
		return nil
	}
	err := k.error(k.err)
	k.free()
	return err
}

// giveUp leaves a call that isn't answered yet.
func (c *Conn) giveUp(k *call, why error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch k.stage {
	case queued:
		if i := slices.Index(c.queue, k); i >= 0 {
			c.queue = slices.Delete(c.queue, i, i+1)
		}
		if k.repeats == 0 {
			why = fmt.Errorf("%w: %w", ErrNotSent, why)
		}
		err := k.error(why)
		c.discard(k)
		return err
	case sent:
		k.stage = abandoned
		return k.error(why)
	}
	return nil
}

// finish tells whoever waits for a call. c.mu is held, as in discard.
func (c *Conn) finish(k *call, err error) {
	if err != nil && k.stage == queued && k.repeats == 0 {
		err = fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	if k.bound || k.stage == abandoned {
		c.settleWatch(k, err == nil, false)
		k.free()
		return
	}
	c.settleWatch(k, err == nil, err == nil)
	k.err, k.stage = err, answered
	k.done <- struct{}{}
}

// discard forgets a call that the server doesn't answer any more.
func (c *Conn) discard(k *call) {
	c.settleWatch(k, false, false)
	k.free()
}

func (k *call) error(err error) error { return &callError{k.op, k.path, err} }
