//go:build !unix

package cli

import (
	"math"
	"net"
)

// listenPrivately makes a socket. The permissions of its folder say who can reach it.
func listenPrivately(path string) (net.Listener, error) { return net.Listen("unix", path) }

// openFiles returns how many files the process may have open.
func openFiles() uint64 { return math.MaxUint64 }
