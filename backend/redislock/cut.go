package redislock

import (
	"context"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// scissors let a goroutine send a command by itself, instead of waking another one to
// wait for the answer, which costs as much as asking Redis: when its context ends the
// connection is cut. They need a client that has one connection, dialed by them.
type scissors struct {
	dial func(ctx context.Context, network, addr string) (net.Conn, error)

	mu   sync.Mutex
	conn *cuttable // the last that was dialed
	turn uint64    // of the command under way
}

// newScissors makes options' dialer their own.
func newScissors(o *redis.Options) *scissors {
	s := &scissors{dial: redis.NewDialer(o)}
	o.Dialer = s.connect
	return s
}

func (s *scissors) connect(ctx context.Context, network, addr string) (net.Conn, error) {
	raw, err := s.dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c := &cuttable{Conn: raw}
	s.mu.Lock()
	s.conn = c
	s.mu.Unlock()
	if sc, ok := raw.(syscall.Conn); ok {
		return plain{c, sc}, nil
	}
	return c, nil
}

// during runs f, and cuts the connection if ctx ends first.
func (s *scissors) during(ctx context.Context, f func()) {
	s.mu.Lock()
	s.turn++
	turn := s.turn
	s.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { s.cut(turn) })
	f()
	stop()
	s.mu.Lock()
	s.turn++ // a cut that comes too late does not hit the next command
	s.mu.Unlock()
}

func (s *scissors) cut(turn uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.turn == turn && s.conn != nil {
		s.conn.cut()
	}
}

// cuttable is a connection on which whoever reads or writes can be stopped.
type cuttable struct {
	net.Conn
	mu   sync.Mutex
	over bool
}

// past is a deadline that has passed.
var past = time.Unix(1, 0)

func (c *cuttable) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	c.Conn.SetDeadline(past)
}

// deadline sets a deadline unless the connection was cut.
func (c *cuttable) deadline(set func(time.Time) error, t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		t = past
	}
	return set(t)
}

func (c *cuttable) SetDeadline(t time.Time) error      { return c.deadline(c.Conn.SetDeadline, t) }
func (c *cuttable) SetReadDeadline(t time.Time) error  { return c.deadline(c.Conn.SetReadDeadline, t) }
func (c *cuttable) SetWriteDeadline(t time.Time) error { return c.deadline(c.Conn.SetWriteDeadline, t) }

// plain is a connection without TLS: go-redis looks at its socket to see whether it
// is still open.
type plain struct {
	*cuttable
	syscall.Conn
}
