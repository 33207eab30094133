//go:build !unix

package cli

import "net"

// listenPrivately makes a socket. The permissions of its folder say who can reach it.
func listenPrivately(path string) (net.Listener, error) { return net.Listen("unix", path) }
