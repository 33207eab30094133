//go:build unix

package cli

import (
	"net"

	"golang.org/x/sys/unix"
)

// listenPrivately makes a socket that only this user can reach.
func listenPrivately(path string) (net.Listener, error) {
	defer unix.Umask(unix.Umask(0o177))
	return net.Listen("unix", path)
}
