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
	c := &conn{Conn: raw, r: bufio.NewReaderSize(raw, 16<<10)}
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

// send writes commands in one piece.
func (c *conn) send(commands ...[]string) error {
	c.buf = c.buf[:0]
	for _, args := range commands {
		c.buf = appendCommand(c.buf, args)
	}
	_, err := c.Write(c.buf)
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
