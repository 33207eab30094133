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

// pipelineConn is a client of ours with one connection at a time, which can be interrupted, or a user's client with a pool.
type pipelineConn struct {
	client *redis.Client
	own    bool

	dialed       atomic.Pointer[ownConn] // the last one of ours
	interruption sync.Once
	interrupted  atomic.Bool // for good
}

// newOwnClient returns a client of ours. Only the connection that it dialed last can be interrupted.
func newOwnClient(o redis.Options, l *logins) *pipelineConn {
	c := &pipelineConn{own: true}
	dial := o.Dialer
	if dial == nil {
		dial = redis.NewDialer(&o)
	}
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		err := l.lately()
		var raw net.Conn
		if err == nil {
			raw, err = dial(ctx, network, addr)
		}
		if err != nil {
			return failedConn{fmt.Errorf("%w", err)}, nil // go-redis unwraps it once
		}
		own := &ownConn{Conn: raw, client: c, logins: l}
		c.dialed.Store(own)
		if socket, ok := raw.(syscall.Conn); ok {
			return socketConn{own, socket}, nil
		}
		return own, nil
	}
	c.client = redis.NewClient(&o)
	return c
}

// interrupt ends the command under way without an answer. The client can't be used any more. Once a call has returned,
// none has an effect: it would end awaitAnswer.
func (c *pipelineConn) interrupt() {
	c.interruption.Do(func() {
		c.interrupted.Store(true)
		if own := c.dialed.Load(); own != nil {
			own.Conn.SetDeadline(pastDeadline)
		}
	})
}

// awaitAnswer waits until the server has answered the interrupted command, or never will. A later
// command on a new connection must not overtake it.
func (c *pipelineConn) awaitAnswer() {
	own := c.dialed.Load()
	if own == nil {
		return
	}
	defer own.Conn.Close()
	if own.answerDue.Load() {
		own.Conn.SetDeadline(time.Now().Add(c.client.Options().ReadTimeout))
		own.Conn.Read(make([]byte, 1))
	}
}

// close ends the commands that wait for an answer, unless the client is a user's.
func (c *pipelineConn) close() {
	if !c.own {
		return
	}
	c.client.Close()
	if own := c.dialed.Load(); own != nil {
		own.Conn.Close()
	}
}

// exec sends commands, one after the other. Each has its result and its error.
func (c *pipelineConn) exec(ctx context.Context, cmds []singleTry) {
	if len(cmds) == 1 && c.own { // a user's client has another pool for pipelines, and more of its connections may be dead
		c.client.Process(ctx, cmds[0])
		return
	}
	execPipeline(ctx, c.client.Pipeline(), cmds)
}

// ownConn is a connection that can be interrupted, and notices a refusal in the server's first answer.
type ownConn struct {
	net.Conn
	client    *pipelineConn
	logins    *logins
	answerDue atomic.Bool // something was sent, and no answer has come
	admitted  bool        // the server has answered something
}

// pastDeadline is a deadline that has passed.
var pastDeadline = time.Unix(1, 0)

func (c *ownConn) SetDeadline(t time.Time) error { return c.keepStopped(c.Conn.SetDeadline(t)) }

func (c *ownConn) SetReadDeadline(t time.Time) error { return c.keepStopped(c.Conn.SetReadDeadline(t)) }

func (c *ownConn) SetWriteDeadline(t time.Time) error {
	return c.keepStopped(c.Conn.SetWriteDeadline(t))
}

// keepStopped stops an interrupted connection again, since a deadline was set.
func (c *ownConn) keepStopped(err error) error {
	if c.client.interrupted.Load() {
		return c.Conn.SetDeadline(pastDeadline)
	}
	return err
}

func (c *ownConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if n > 0 {
		c.answerDue.Store(true)
	}
	return n, err
}

func (c *ownConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n == 0 {
		return n, err
	}
	c.answerDue.Store(false)
	if !c.admitted {
		c.admitted = true
		if refused := c.refusal(b[:n]); refused != nil {
			return 0, refused
		}
	}
	return n, err
}

// refusal returns the error of a first answer that go-redis would take for an answer to HELLO, and go on until the connection
// breaks. It remembers a wrong password.
func (c *ownConn) refusal(answer []byte) error {
	text, refused := bytes.CutPrefix(answer, []byte("-"))
	switch {
	case refused && bytes.HasPrefix(text, []byte(tooManyClients)):
		return &ReplyError{Text: string(bytes.TrimSpace(text))}
	case refused && bytes.HasPrefix(text, []byte("WRONGPASS ")):
		line, _, _ := bytes.Cut(text, []byte("\r"))
		c.logins.failed(&ReplyError{Text: string(line)})
	}
	return nil
}

// Close leaves an interrupted connection open if awaitAnswer waits for its answer.
func (c *ownConn) Close() error {
	if c.client.interrupted.Load() && c.answerDue.Load() {
		return nil
	}
	return c.Conn.Close()
}

// socketConn is a connection without TLS. go-redis checks its socket before each use.
type socketConn struct {
	*ownConn
	syscall.Conn
}

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
