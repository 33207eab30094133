//go:build unix

package cli

import (
	"math"
	"net"

	"golang.org/x/sys/unix"
)

// listenPrivately makes a socket that only this user can reach.
func listenPrivately(path string) (net.Listener, error) {
	defer unix.Umask(unix.Umask(0o177))
	return net.Listen("unix", path)
}

// openFiles returns how many files the process may have open. Package os has raised that to the hard limit.
func openFiles() uint64 {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return math.MaxUint64
	}
	return uint64(limit.Cur)
}
