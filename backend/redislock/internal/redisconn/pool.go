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
	slots   chan struct{} // one is taken for each connection in use

	mu      sync.Mutex
	idle    []*wire
	retired bool
}

func newPool(open func(ctx context.Context) (*wire, error), timeout time.Duration) *pool {
	return &pool{open: open, timeout: timeout, slots: make(chan struct{}, maxDedicated)}
}

var errNoneFree = errors.New("all dedicated connections are in use")

// take returns an idle connection, or a new one.
func (p *pool) take(ctx context.Context) (DedicatedConn, error) {
	soon, cancel := context.WithTimeoutCause(ctx, p.timeout, errNoneFree)
	defer cancel()
	select {
	case p.slots <- struct{}{}:
	case <-soon.Done():
		return nil, unwritten(context.Cause(soon))
	}
	if w := p.takeIdle(); w != nil {
		return &dedicatedWire{w, p}, nil
	}
	w, err := p.open(ctx)
	if err != nil {
		<-p.slots
		return nil, unwritten(err)
	}
	return &dedicatedWire{w, p}, nil
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

func (p *pool) put(w *wire, broken bool) {
	p.mu.Lock()
	if broken || p.retired || w.in.buffered() {
		w.Close()
	} else {
		p.idle = append(p.idle, w)
	}
	p.mu.Unlock()
	<-p.slots
}

// retire closes the connections that are idle, and others once they are.
func (p *pool) retire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.retired = true
	for _, w := range p.idle {
		w.Close()
	}
	p.idle = nil
}

func (p *pool) unused() bool { return len(p.slots) == 0 }

type dedicatedWire struct {
	*wire
	pool *pool
}

// DoAll waits for the answers whatever becomes of ctx: the connection is the caller's.
func (c *dedicatedWire) DoAll(ctx context.Context, commands [][]string) []Answer {
	c.SetDeadline(time.Now().Add(c.pool.timeout))
	return c.exchange(commands)
}

func (c *dedicatedWire) Close(broken bool) { c.pool.put(c.wire, broken) }
