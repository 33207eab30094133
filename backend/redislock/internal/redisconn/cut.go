package redisconn

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// scissors let a goroutine send a command by itself, instead of waking another one to
// wait for the answer, which costs as much as asking Redis: when its context ends the
// connection is cut. They need a client that has one connection, dialed by them.
type scissors struct {
	dial func(ctx context.Context, network, addr string) (net.Conn, error)

	mu       sync.Mutex
	conn     *cuttable // the last that was dialed
	draining *cuttable // the last that was cut, while an answer may come
	turn     uint64    // of the command under way
}

// newScissors makes options' dialer their own.
func newScissors(o *redis.Options) *scissors {
	s := &scissors{dial: o.Dialer}
	if s.dial == nil {
		s.dial = redis.NewDialer(o)
	}
	o.Dialer = s.connect
	return s
}

func (s *scissors) connect(ctx context.Context, network, addr string) (net.Conn, error) {
	raw, err := s.dial(ctx, network, addr)
	if err != nil {
		return undialed{fmt.Errorf("%w", err)}, nil // go-redis unwraps it once
	}
	c := &cuttable{Conn: raw}
	s.mu.Lock()
	s.conn = c
	s.mu.Unlock()
	if sc, ok := raw.(syscall.Conn); ok {
		return plain{c, sc}, nil
	}
	return probed{c}, nil
}

// during runs f, and cuts the connection if ctx ends first.
func (s *scissors) during(ctx context.Context, f func()) (wasCut bool) {
	s.mu.Lock()
	s.turn++
	turn := s.turn
	s.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { s.cut(turn) })
	f()
	stop()
	s.mu.Lock()
	s.turn++ // a cut that comes too late does not hit the next command
	wasCut = s.conn != nil && s.conn.isOver()
	s.mu.Unlock()
	return wasCut
}

func (s *scissors) cut(turn uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.turn == turn && s.conn != nil {
		s.conn.cut()
	}
}

// outlive waits until the server has answered what was cut, or can't any more: a later
// command, which goes through a new connection, must not overtake it.
func (s *scissors) outlive(timeout time.Duration) {
	s.mu.Lock()
	c := s.conn
	s.conn, s.draining = nil, c
	s.mu.Unlock()
	if c == nil {
		return
	}
	defer c.Conn.Close()
	if c.owed.Load() {
		c.Conn.SetDeadline(time.Now().Add(timeout))
		c.Conn.Read(make([]byte, 1))
	}
}

// close ends whatever still waits for an answer.
func (s *scissors) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range []*cuttable{s.conn, s.draining} {
		if c != nil {
			c.Conn.Close()
		}
	}
}

// cuttable is a connection on which whoever reads or writes can be stopped.
type cuttable struct {
	net.Conn
	mu   sync.Mutex
	over bool
	owed atomic.Bool // something was sent, and no answer has come
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

func (c *cuttable) isOver() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.over
}

func (c *cuttable) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if n > 0 {
		c.owed.Store(true)
	}
	return n, err
}

func (c *cuttable) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.owed.Store(false)
	}
	return n, err
}

// Close leaves a connection that was cut to outlive.
func (c *cuttable) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return nil
	}
	return c.Conn.Close()
}

// plain is a connection without TLS: go-redis looks at its socket to see whether it
// is still open.
type plain struct {
	*cuttable
	syscall.Conn
}

// probed is a connection with TLS: go-redis asks it whether it is still of use, and then
// does not look at the socket.
type probed struct{ *cuttable }

func (c probed) SyscallConn() (syscall.RawConn, error) {
	if c.isOver() {
		return nil, net.ErrClosed
	}
	return unread{}, nil
}

type unread struct{}

func (unread) Control(func(uintptr)) error    { return nil }
func (unread) Read(func(uintptr) bool) error  { return nil }
func (unread) Write(func(uintptr) bool) error { return nil }

// undialed stands for a connection that could not be made: each use fails for that reason.
// go-redis writes the errors of a dialer into a log that is the program's, and by default
// its standard error.
type undialed struct{ err error }

func (c undialed) Read([]byte) (int, error)         { return 0, c.err }
func (c undialed) Write([]byte) (int, error)        { return 0, c.err }
func (c undialed) Close() error                     { return nil }
func (c undialed) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (c undialed) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (c undialed) SetDeadline(time.Time) error      { return c.err }
func (c undialed) SetReadDeadline(time.Time) error  { return c.err }
func (c undialed) SetWriteDeadline(time.Time) error { return c.err }
