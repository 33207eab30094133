//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package pglock

import (
	"net"
	"syscall"
)

// canPeek reports that checking an idle connection takes no round trip.
const canPeek = true

// socketAlive reports whether an idle connection is open and has received nothing. A server that ends a
// session sends the reason first. socketAlive sends nothing.
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
