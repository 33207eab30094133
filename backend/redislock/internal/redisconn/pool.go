package redisconn

import (
	"context"
	"errors"
	"sync"
	"time"
)

// maxDedicated is the number of dedicated connections to a server.
const maxDedicated = 16

// pool has dedicated connections.
type pool struct {
	open    func(ctx context.Context) (*wire, error)
	timeout time.Duration // of an answer, and of the wait for a connection

	mu     sync.Mutex
	idle   []*wire
	slots  chan struct{} // one is taken for each connection in use
	former chan struct{} // the slots of connections that were replaced in use
}

func newPool(open func(ctx context.Context) (*wire, error), timeout time.Duration) *pool {
	return &pool{open: open, timeout: timeout, slots: make(chan struct{}, maxDedicated)}
}

var errNoneFree = errors.New("all dedicated connections are in use")

// take returns an idle connection, or a new one.
func (p *pool) take(ctx context.Context) (DedicatedConn, error) {
	p.mu.Lock()
	slots := p.slots
	p.mu.Unlock()
	soon, cancel := context.WithTimeoutCause(ctx, p.timeout, errNoneFree)
	defer cancel()
	select {
	case slots <- struct{}{}:
	case <-soon.Done():
		return nil, unwritten(context.Cause(soon))
	}
	w := p.takeIdle()
	if w == nil {
		var err error
		if w, err = p.open(ctx); err != nil {
			<-slots
			return nil, unwritten(err)
		}
	}
	return &dedicatedWire{w, p, slots}, nil
}

func (p *pool) takeIdle() *wire {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.idle) > 0 {
		last := len(p.idle) - 1
		w := p.idle[last]
		p.idle = p.idle[:last]
		if !w.peek.closed() {
			return w
		}
		w.Close()
	}
	return nil
}

// reconnect closes the connections that are idle, and those in use once they are. Others may be made at once, unless some
// that were replaced are still in use.
func (p *pool) reconnect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.idle {
		w.Close()
	}
	p.idle = nil
	if len(p.former) == 0 {
		p.former, p.slots = p.slots, make(chan struct{}, maxDedicated)
	}
}

type dedicatedWire struct {
	*wire
	pool  *pool
	slots chan struct{}
}

// DoAll waits for the answers whatever becomes of ctx: the connection is the caller's.
func (c *dedicatedWire) DoAll(ctx context.Context, commands [][]string) []Answer {
	c.SetDeadline(time.Now().Add(c.pool.timeout))
	return c.exchange(commands)
}

func (c *dedicatedWire) Close(broken bool) {
	p := c.pool
	p.mu.Lock()
	if broken || c.slots != p.slots || c.in.buffered() {
		c.wire.Close()
	} else {
		p.idle = append(p.idle, c.wire)
	}
	p.mu.Unlock()
	<-c.slots
}
