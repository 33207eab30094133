package distlock

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// tasks counts what Close has to wait for.
type tasks struct {
	n    atomic.Int64
	idle chan struct{} // of one
}

func (t *tasks) Begin() { t.n.Add(1) }

func (t *tasks) End() {
	if t.n.Add(-1) == 0 {
		select {
		case t.idle <- struct{}{}:
		default:
		}
	}
}

// wait waits until there are none, or ctx ends: then it reports false.
func (t *tasks) wait(ctx context.Context) bool {
	for t.n.Load() > 0 {
		select {
		case <-t.idle:
		case <-ctx.Done():
			return t.n.Load() == 0
		}
	}
	return true
}

// delays are calls that are made later.
type delays struct {
	mu      sync.Mutex
	pending map[*delay]struct{}
	closed  bool
}

type delay struct {
	timer *time.Timer
	f     func()
}

// after calls f in d, or when the client closes. f must not block.
func (c *Client) after(d time.Duration, f func()) {
	c.tasks.Begin()
	c.delays.mu.Lock()
	defer c.delays.mu.Unlock()
	if c.delays.closed {
		d = 0
	}
	x := &delay{f: f}
	x.timer = time.AfterFunc(d, func() { c.run(x) })
	if c.delays.pending == nil {
		c.delays.pending = map[*delay]struct{}{}
	}
	c.delays.pending[x] = struct{}{}
}

func (c *Client) run(x *delay) {
	defer c.tasks.End()
	c.delays.mu.Lock()
	delete(c.delays.pending, x)
	c.delays.mu.Unlock()
	x.f()
}

// hurry makes all delayed calls now.
func (d *delays) hurry() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	for x := range d.pending {
		if x.timer.Stop() {
			x.timer.Reset(0)
		}
	}
}
