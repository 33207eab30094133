package redisconn

import (
	"context"
	"maps"
	"slices"
	"sync"
)

// NewServer returns a server with connections of its own: one for commands, one for each Listener,
// and a pool of dedicated ones.
func NewServer(o Options) Server {
	s := &server{o: o, wires: map[*wire]struct{}{}}
	s.mux = newMultiplexer(o.timeout(), s.connect)
	s.pool = newPool(s.connect, o.timeout())
	return s
}

type server struct {
	o      Options
	logins logins
	mux    *multiplexer
	pool   *pool

	mu     sync.Mutex
	wires  map[*wire]struct{} // that are open
	closed bool
}

// connect makes a connection, which Close closes too.
func (s *server) connect(ctx context.Context) (*wire, error) {
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

func (s *server) Do(ctx context.Context, args []string) (any, error) {
	a, err := s.mux.do(ctx, args)
	if err != nil {
		return nil, err
	}
	return a.Reply, a.Err
}

func (s *server) DoAll(ctx context.Context, commands [][]string) []Answer {
	got, err := s.mux.doAll(ctx, commands)
	if err != nil {
		return FailAll(len(commands), err)
	}
	return got
}

// Reconnect makes later commands use new connections. Commands under way keep theirs.
func (s *server) Reconnect() {
	s.mux.reconnect()
	s.pool.reconnect()
}

func (s *server) Dedicated(ctx context.Context) (DedicatedConn, error) { return s.pool.take(ctx) }

// Close ends all connections, and what waits for answers.
func (s *server) Close() {
	s.mu.Lock()
	s.closed = true
	wires := slices.Collect(maps.Keys(s.wires))
	s.mu.Unlock()
	s.mux.close()
	for _, w := range wires {
		w.Close()
	}
}
