package distlock

import (
	"context"
	"sync"
	"time"
)

// calls makes the contexts that bound calls to the backend. A context with a timer
// of its own for each call costs more than the rest of an uncontended lock in this
// package, so calls that begin at about the same time share one.
type calls struct {
	timeout time.Duration

	mu     sync.Mutex
	shared context.Context
	cancel context.CancelFunc
	until  time.Time // when shared gets too short for new calls
}

// context is parent, bounded by d. The caller must call the function when the call
// is over.
func (c *calls) context(parent context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if parent.Done() != nil || d != c.timeout {
		return context.WithTimeout(parent, d)
	}
	return &call{c.slot(), parent}, func() {}
}

// slot is a context that ends in between three quarters of the timeout and all of it.
func (c *calls) slot() context.Context {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shared == nil || !now.Before(c.until) {
		// The one before ends by its timer: others may be using it.
		c.shared, c.cancel = context.WithTimeout(context.Background(), c.timeout)
		c.until = now.Add(c.timeout / 4)
	}
	return c.shared
}

// close ends the calls that are still under way, when the backend is closed.
func (c *calls) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cancel != nil {
		c.cancel()
	}
}

// call is a context with the end of one and the values of another.
type call struct {
	context.Context
	values context.Context
}

// Value asks the shared context first, which has nothing but what package context
// looks for to make children of it cheap.
func (c *call) Value(key any) any {
	if v := c.Context.Value(key); v != nil {
		return v
	}
	return c.values.Value(key)
}
