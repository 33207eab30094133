package redisconn

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"
)

// NewServer returns a server with connections of its own: one for commands, one for each Listener,
// and a pool of dedicated ones.
func NewServer(o Options) *Server {
	s := &Server{o: o, wires: map[*wire]struct{}{}}
	s.mux = newMultiplexer(o.timeout(), s.connect)
	s.pool = newPool(s.connect, o.timeout())
	return s
}

// Server is a Redis server. It is safe for concurrent use.
type Server struct {
	o      Options
	logins logins
	mux    *multiplexer
	pool   *pool

	mu     sync.Mutex
	wires  map[*wire]struct{} // that are open
	closed bool
}

// connect makes a connection, which Close closes too.
func (s *Server) connect(ctx context.Context) (*wire, error) {
	w, err := connect(ctx, &s.o, &s.logins)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		w.Close()
		return nil, ErrClientClosed
	}
	w.gone = func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.wires, w)
	}
	s.wires[w] = struct{}{}
	return w, nil
}

// Do is DoAll for one command.
func (s *Server) Do(ctx context.Context, args []string) (any, error) {
	a := s.DoAll(ctx, [][]string{args})[0]
	return a.Reply, a.Err
}

// DoAll sends commands once, on one connection, without another caller's command between them. It returns an answer for each:
// an int64, a string, nil or a []any of these, or an error. That is a *ReplyError if the server answered it, and another one if the
// answer is lost, and when ctx ends. A later command is executed after commands that were given up, unless their error
// is an *UnansweredError.
func (s *Server) DoAll(ctx context.Context, commands [][]string) []Answer {
	return s.mux.do(ctx, commands)
}

// Reconnect makes later commands use new connections. Commands under way keep theirs.
func (s *Server) Reconnect() {
	s.mux.reconnect()
	s.pool.reconnect()
}

// Dedicated returns a connection that no other caller uses.
func (s *Server) Dedicated(ctx context.Context) (*DedicatedConn, error) { return s.pool.take(ctx) }

// Close ends all connections, and what waits for answers.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	wires := slices.Collect(maps.Keys(s.wires))
	s.mu.Unlock()
	s.mux.close()
	for _, w := range wires {
		w.Close()
	}
}

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
func (p *pool) take(ctx context.Context) (*DedicatedConn, error) {
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
	return &DedicatedConn{w, p, slots}, nil
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

// DedicatedConn is a connection for one caller at a time.
type DedicatedConn struct {
	*wire
	pool  *pool
	slots chan struct{}
}

// DoAll sends commands, and returns an answer for each. After an error that is no *ReplyError the connection is broken.
func (c *DedicatedConn) DoAll(commands [][]string) []Answer {
	c.SetDeadline(time.Now().Add(c.pool.timeout))
	return c.exchange(commands)
}

// Close returns the connection to its pool, or closes it if it is broken.
func (c *DedicatedConn) Close(broken bool) {
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
