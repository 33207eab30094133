//go:build unix

package redisconn

import (
	"crypto/tls"
	"errors"
	"net"
	"syscall"
)

// peeker looks whether a server has ended an idle connection. The zero value never sees it.
type peeker struct {
	raw   syscall.RawConn
	look  func(fd uintptr)
	ended *bool
}

// newPeeker returns the peeker of a connection. Nothing is under way on one with TLS either while it is idle.
func newPeeker(conn net.Conn) (p peeker) {
	if secure, is := conn.(*tls.Conn); is {
		conn = secure.NetConn()
	}
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return p
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return p
	}
	ended, b := new(bool), make([]byte, 1)
	return peeker{raw, func(fd uintptr) {
		_, _, err := syscall.Recvfrom(int(fd), b, syscall.MSG_PEEK)
		*ended = !errors.Is(err, syscall.EAGAIN) && !errors.Is(err, syscall.EINTR)
	}, ended}
}

// closed reports whether the server has ended the connection, or has sent what nobody asked for.
func (p peeker) closed() bool {
	return p.raw != nil && (p.raw.Control(p.look) != nil || *p.ended)
}
