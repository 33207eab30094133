//go:build unix

package faultproxy

import "syscall"

// reuseAddr lets a socket have an address whose earlier connections are not over.
func reuseAddr(_, _ string, c syscall.RawConn) error {
	var err error
	if cerr := c.Control(func(fd uintptr) { err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1) }); cerr != nil {
		return cerr
	}
	return err
}
