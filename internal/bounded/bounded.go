// Package bounded has the contexts of calls, which are cheap to make.
package bounded

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// Context is the context of a call. It has the values of the caller's context, and ends with that or
// with a limit that many calls share. Nothing has to be registered anywhere until Done is called, and
// Ends avoids that.
type Context struct {
	caller context.Context
	limit  context.Context

	mu     sync.Mutex             // while merged is made
	merged atomic.Pointer[merged] // nil until it is needed
}

// merged is a context that ends with both.
type merged struct {
	context.Context
	cancel context.CancelFunc
}

// New returns a context that ends with the caller's or at limit, which has a deadline and no values.
// The user calls End once the call is over.
func New(caller, limit context.Context) *Context { return &Context{caller: caller, limit: limit} }

// Within returns a context that ends with the caller's or after d.
func Within(caller context.Context, d time.Duration) *Context {
	c := &Context{caller: caller}
	c.limit = c.merge(time.Now().Add(d))
	return c
}

// merge makes the context that ends with the caller's and at an instant.
func (c *Context) merge(at time.Time) context.Context {
	m := &merged{}
	m.Context, m.cancel = context.WithDeadline(c.caller, at)
	c.merged.Store(m)
	return m
}

// End frees what Done registered.
func (c *Context) End() {
	if m := c.merged.Load(); m != nil {
		m.cancel()
	}
}

// end returns a context that ends when c does; nil if there is none yet.
func (c *Context) end() context.Context {
	switch m := c.merged.Load(); {
	case m != nil:
		return m
	case c.caller.Done() == nil, c.limit.Err() != nil:
		return c.limit
	}
	return nil
}

// Deadline returns the earlier deadline.
func (c *Context) Deadline() (time.Time, bool) {
	end, ok := c.limit.Deadline()
	if own, has := c.caller.Deadline(); has && (!ok || own.Before(end)) {
		return own, true
	}
	return end, ok
}

// Done returns a channel that is closed when either context ends.
func (c *Context) Done() <-chan struct{} {
	if end := c.end(); end != nil {
		return end.Done()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.merged.Load(); m != nil {
		return m.Done()
	}
	at, _ := c.limit.Deadline()
	return c.merge(at).Done()
}

// Err returns why either context ended.
func (c *Context) Err() error {
	if end := c.end(); end != nil {
		return end.Err()
	}
	return c.caller.Err()
}

// ownKey is the key of the Context itself, for the contexts that are made of it.
type ownKey struct{}

// Limited reports whether ctx, which has ended, did so at the limit of the call, and not because its caller gave up. Of any
// other context it reports whether its deadline has passed.
func Limited(ctx context.Context) bool {
	if c, ok := ctx.Value(ownKey{}).(*Context); ok {
		return c.caller.Err() == nil
	}
	return errors.Is(context.Cause(ctx), context.DeadlineExceeded)
}

// Value returns a value of the caller's context. Package context finds the context that ends the call,
// which makes cheap children.
func (c *Context) Value(key any) any {
	if key == (ownKey{}) {
		return c
	}
	if end := c.end(); end != nil {
		if v := end.Value(key); v != nil {
			return v
		}
	}
	return c.caller.Value(key)
}

// Ends returns channels of which one is closed when ctx ends. The second may be nil.
func Ends(ctx context.Context) (first, second <-chan struct{}) {
	if c, ok := ctx.(*Context); ok && c.end() == nil {
		return c.caller.Done(), c.limit.Done()
	}
	return ctx.Done(), nil
}
