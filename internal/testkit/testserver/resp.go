package testserver

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// ErrReply is matched by the errors that a Redis server answered.
var ErrReply = errors.New("redis")

// respConn is a connection to a Redis server, for the few commands that it takes to
// set up a deployment.
type respConn struct {
	net.Conn
	r       *bufio.Reader
	timeout time.Duration // of a command
}

// dialResp connects. The timeout is that of connecting, and of each command that follows.
func dialResp(addr string, t *tls.Config, timeout time.Duration) (*respConn, error) {
	d := &net.Dialer{Timeout: timeout}
	var c net.Conn
	var err error
	if t != nil {
		c, err = tls.DialWithDialer(d, "tcp", addr, t)
	} else {
		c, err = d.Dial("tcp", addr)
	}
	if err != nil {
		return nil, err
	}
	return &respConn{Conn: c, r: bufio.NewReader(c), timeout: timeout}, nil
}

// do sends a command and returns its answer: an int64, a string, nil, or a []any of
// these.
func (c *respConn) do(args ...string) (any, error) {
	c.SetDeadline(time.Now().Add(c.timeout))
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(a), a)
	}
	if _, err := io.WriteString(c, b.String()); err != nil {
		return nil, err
	}
	return c.read()
}

func (c *respConn) read() (any, error) {
	line, err := c.r.ReadString('\n')
	if err != nil {
		return nil, err
	}
	line = strings.TrimSuffix(line, "\r\n")
	if line == "" {
		return nil, errors.New("not an answer of Redis")
	}
	switch kind, rest := line[0], line[1:]; kind {
	case '+':
		return rest, nil
	case '-':
		return nil, fmt.Errorf("%w: %s", ErrReply, rest)
	case ':':
		return strconv.ParseInt(rest, 10, 64)
	case '$':
		return c.readBulk(rest)
	case '*':
		return c.readList(rest)
	}
	return nil, fmt.Errorf("not an answer of Redis: %q", line)
}

func (c *respConn) readBulk(size string) (any, error) {
	n, err := strconv.Atoi(size)
	if err != nil || n < 0 {
		return nil, err
	}
	b := make([]byte, n+2)
	if _, err := io.ReadFull(c.r, b); err != nil {
		return nil, err
	}
	return string(b[:n]), nil
}

func (c *respConn) readList(size string) (any, error) {
	n, err := strconv.Atoi(size)
	if err != nil || n < 0 {
		return nil, err
	}
	list := make([]any, n)
	for i := range list {
		if list[i], err = c.read(); err != nil && !errors.Is(err, ErrReply) {
			return nil, err
		}
	}
	return list, nil
}
