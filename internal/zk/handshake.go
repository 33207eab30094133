package zk

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// passwordSize is the length of what a session's owner proves himself with.
const passwordSize = 16

// identity is what a session is known by.
type identity struct {
	id       int64
	password []byte
}

// welcome is a server's answer to a handshake.
type welcome struct {
	identity
	timeout time.Duration
	sentAt  time.Time // when the handshake was
}

// maxWelcome is longer than any answer to a handshake.
const maxWelcome = 1 << 10

// greet opens a session, or takes up one, on a new connection.
func greet(conn net.Conn, who identity, timeout time.Duration, zxid int64) (welcome, error) {
	w := welcome{sentAt: time.Now()}
	if _, err := conn.Write(greeting(who, timeout, zxid)); err != nil {
		return w, err
	}
	var head [4]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return w, fmt.Errorf("the server doesn't serve: %w", err)
	}
	size := binary.BigEndian.Uint32(head[:])
	if size > maxWelcome {
		return w, fmt.Errorf("%w: not ZooKeeper's protocol", errProtocol)
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(conn, b); err != nil {
		return w, err
	}
	return w, w.decode(&decoder{b: b}, who)
}

func greeting(who identity, timeout time.Duration, zxid int64) []byte {
	b := make([]byte, 4, 64)
	b = appendInt(b, 0) // the protocol's version
	b = appendLong(b, zxid)
	b = appendInt(b, int32(min(timeout.Milliseconds(), 1<<31-1)))
	b = appendLong(b, who.id)
	if who.password == nil {
		who.password = make([]byte, passwordSize)
	}
	b = appendText(b, who.password)
	b = appendBool(b, false) // a server that can only be read is of no use
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

func (w *welcome) decode(d *decoder, who identity) error {
	d.int()
	w.timeout = time.Duration(d.int()) * time.Millisecond
	w.id, w.password = d.long(), d.buffer()
	readOnly := len(d.b) > 0 && d.bool() // servers before 3.4 don't say
	switch {
	case d.bad:
		return errProtocol
	case w.timeout <= 0 && who.id != 0:
		return ErrSessionExpired
	case w.timeout <= 0 || w.id == 0 || who.id != 0 && w.id != who.id:
		return fmt.Errorf("%w: a session nobody asked for", errProtocol)
	case readOnly:
		return errors.New("the server can only be read: it has lost the others")
	}
	return nil
}

// attempt connects to one server and shakes hands.
func (c *Config) attempt(ctx context.Context, addr string, who identity, zxid int64) (net.Conn, welcome, error) {
	conn, err := c.connect(ctx, addr)
	if err != nil {
		return nil, welcome{}, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	w, err := greet(conn, who, c.Timeout, zxid)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		conn.Close()
		return nil, w, fmt.Errorf("%s: %w", addr, err)
	}
	return conn, w, nil
}
