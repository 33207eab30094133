//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package pglock

import (
	"net"
	"syscall"
)

// canPeek says that alive costs no round trip.
const canPeek = true

// socketAlive looks whether a connection that nobody uses was closed by the other side, or has
// been told something: a server says why it ends a session. It sends nothing.
func socketAlive(conn net.Conn) bool {
	if t, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = t.NetConn() // below TLS
	}
	c, ok := conn.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	quiet := false
	err = raw.Control(func(fd uintptr) {
		_, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		quiet = err == syscall.EAGAIN || err == syscall.EINTR
	})
	return err == nil && quiet
}
