package redislock

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"time"
)

// conn is a connection that is logged in.
type conn struct {
	net.Conn
	r    *bufio.Reader
	buf  []byte
	used time.Time
}

func newConn(raw net.Conn) *conn {
	return &conn{Conn: raw, r: bufio.NewReaderSize(raw, 16<<10)}
}

// dial connects and logs in; ctx and the target's timeout bound it.
func (t *target) dial(ctx context.Context) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	d := &net.Dialer{KeepAlive: 15 * time.Second}
	raw, err := d.DialContext(ctx, t.network, t.addr)
	if err != nil {
		return nil, err
	}
	if t.tls != nil {
		raw = tls.Client(raw, t.tls)
	}
	c := newConn(raw)
	stop := context.AfterFunc(ctx, func() { raw.SetDeadline(past) })
	err = t.logIn(c)
	if !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		raw.Close()
		return nil, err
	}
	return c, nil
}

func (t *target) logIn(c *conn) error {
	var commands [][]string
	switch {
	case t.user != "":
		commands = append(commands, []string{"AUTH", t.user, t.password})
	case t.password != "":
		commands = append(commands, []string{"AUTH", t.password})
	}
	if t.db != 0 {
		commands = append(commands, []string{"SELECT", itoa(t.db)})
	}
	for _, args := range commands {
		if err := c.send(args); err != nil {
			return err
		}
		reply, err := readReply(c.r)
		if err != nil {
			return err
		}
		if re, ok := reply.(*replyError); ok {
			return re
		}
	}
	return nil
}

// encode writes calls down in one piece, which is good until the next time.
func (c *conn) encode(batch []*call) []byte {
	c.buf = c.buf[:0]
	for _, x := range batch {
		c.buf = appendCommand(c.buf, x.args)
	}
	return c.buf
}

func (c *conn) send(args []string) error {
	_, err := c.Write(appendCommand(nil, args))
	return err
}

// past is a deadline that has passed.
var past = time.Unix(1, 0)

// idle is how long a connection may have been unused without a look at it: servers and
// what lies between close those that nobody uses.
const idle = time.Second

// alive reports whether the connection is still open and silent, as it must be between
// commands.
func (c *conn) alive() bool {
	if time.Since(c.used) < idle {
		return true
	}
	c.SetReadDeadline(time.Now().Add(100 * time.Microsecond))
	_, err := c.r.Peek(1)
	return timedOut(err)
}

func timedOut(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
