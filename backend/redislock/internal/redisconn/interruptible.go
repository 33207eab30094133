package redisconn

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// interrupter lets a goroutine send a command itself. Waking another goroutine and waiting for it
// costs as much as a query of Redis. If the context ends, the connection is interrupted. Its
// client must have a single connection.
type interrupter struct {
	dial   func(ctx context.Context, network, addr string) (net.Conn, error)
	logins *logins

	mu          sync.Mutex
	conn        *interruptibleConn // the last one dialed
	interrupted *interruptibleConn // while its answer may come
	serial      uint64             // of the command under way
}

// newInterrupter replaces the dialer of options by its own.
func newInterrupter(o *redis.Options, l *logins) *interrupter {
	s := &interrupter{dial: o.Dialer, logins: l}
	if s.dial == nil {
		s.dial = redis.NewDialer(o)
	}
	o.Dialer = s.connect
	return s
}

func (s *interrupter) connect(ctx context.Context, network, addr string) (net.Conn, error) {
	err := s.logins.lately()
	var raw net.Conn
	if err == nil {
		raw, err = s.dial(ctx, network, addr)
	}
	if err != nil {
		return failedConn{fmt.Errorf("%w", err)}, nil // go-redis unwraps it once
	}
	c := &interruptibleConn{Conn: raw, logins: s.logins}
	s.mu.Lock()
	s.conn = c
	s.mu.Unlock()
	if sc, ok := raw.(syscall.Conn); ok {
		return socketConn{c, sc}, nil
	}
	return tlsConn{c}, nil
}

// run calls f, and interrupts the connection if ctx ends first.
func (s *interrupter) run(ctx context.Context, f func()) (interrupted bool) {
	s.mu.Lock()
	s.serial++
	turn := s.serial
	s.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { s.interrupt(turn) })
	f()
	stop()
	s.mu.Lock()
	s.serial++ // a late interruption must not hit the next command
	interrupted = s.conn != nil && s.conn.isStopped()
	s.mu.Unlock()
	return interrupted
}

func (s *interrupter) interrupt(turn uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.serial == turn && s.conn != nil {
		s.conn.interrupt()
	}
}

// awaitAnswer waits until the server has answered the interrupted command, or never will. A later
// command on a new connection must not overtake it.
func (s *interrupter) awaitAnswer(timeout time.Duration) {
	s.mu.Lock()
	c := s.conn
	s.conn, s.interrupted = nil, c
	s.mu.Unlock()
	if c == nil {
		return
	}
	defer c.Conn.Close()
	if c.answerDue.Load() {
		c.Conn.SetDeadline(time.Now().Add(timeout))
		c.Conn.Read(make([]byte, 1))
	}
}

// close ends the commands that wait for an answer.
func (s *interrupter) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range []*interruptibleConn{s.conn, s.interrupted} {
		if c != nil {
			c.Conn.Close()
		}
	}
}

// interruptibleConn is a connection whose readers and writers can be interrupted.
type interruptibleConn struct {
	net.Conn
	logins    *logins
	mu        sync.Mutex
	stopped   bool
	answerDue atomic.Bool // something was sent, and no answer has come
	admitted  bool        // the server has answered something
}

// pastDeadline is a deadline that has passed.
var pastDeadline = time.Unix(1, 0)

func (c *interruptibleConn) interrupt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped = true
	c.Conn.SetDeadline(pastDeadline)
}

// setDeadline sets a deadline unless the connection was interrupted.
func (c *interruptibleConn) setDeadline(set func(time.Time) error, t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		t = pastDeadline
	}
	return set(t)
}

func (c *interruptibleConn) SetDeadline(t time.Time) error {
	return c.setDeadline(c.Conn.SetDeadline, t)
}

func (c *interruptibleConn) SetReadDeadline(t time.Time) error {
	return c.setDeadline(c.Conn.SetReadDeadline, t)
}

func (c *interruptibleConn) SetWriteDeadline(t time.Time) error {
	return c.setDeadline(c.Conn.SetWriteDeadline, t)
}

func (c *interruptibleConn) isStopped() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stopped
}

func (c *interruptibleConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if n > 0 {
		c.answerDue.Store(true)
	}
	return n, err
}

func (c *interruptibleConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n == 0 {
		return n, err
	}
	c.answerDue.Store(false)
	if !c.admitted {
		if text, refused := bytes.CutPrefix(b[:n], []byte("-")); refused && bytes.HasPrefix(text, []byte(tooManyClients)) {
			// go-redis would take it for an answer to HELLO, and go on until the connection breaks.
			return 0, &ReplyError{Text: string(bytes.TrimSpace(text))}
		} else if refused && bytes.HasPrefix(text, []byte("WRONGPASS ")) {
			line, _, _ := bytes.Cut(text, []byte("\r"))
			c.logins.failed(&ReplyError{Text: string(line)})
		}
		c.admitted = true
	}
	return n, err
}

// Close leaves an interrupted connection open, for awaitAnswer.
func (c *interruptibleConn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return nil
	}
	return c.Conn.Close()
}

// socketConn is a connection without TLS. go-redis checks its socket before each use.
type socketConn struct {
	*interruptibleConn
	syscall.Conn
}

// tlsConn is a connection with TLS. go-redis asks it whether it is usable, and does not check the
// socket.
type tlsConn struct{ *interruptibleConn }

func (c tlsConn) SyscallConn() (syscall.RawConn, error) {
	if c.isStopped() {
		return nil, net.ErrClosed
	}
	return fakeSocket{}, nil
}

type fakeSocket struct{}

func (fakeSocket) Control(func(uintptr)) error { return nil }

func (fakeSocket) Read(func(uintptr) bool) error { return nil }

func (fakeSocket) Write(func(uintptr) bool) error { return nil }

// failedConn stands for a connection that could not be made. Each use returns the dialer's error.
// go-redis would write that error to its log, which is the program's, and by default goes to
// standard error.
type failedConn struct{ err error }

func (c failedConn) Read([]byte) (int, error) { return 0, c.err }

func (c failedConn) Write([]byte) (int, error) { return 0, c.err }

func (c failedConn) Close() error { return nil }

func (c failedConn) LocalAddr() net.Addr { return &net.TCPAddr{} }

func (c failedConn) RemoteAddr() net.Addr { return &net.TCPAddr{} }

func (c failedConn) SetDeadline(time.Time) error { return c.err }

func (c failedConn) SetReadDeadline(time.Time) error { return c.err }

func (c failedConn) SetWriteDeadline(time.Time) error { return c.err }
