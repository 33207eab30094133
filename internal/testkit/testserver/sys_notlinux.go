//go:build !linux

package testserver

import (
	"net"
	"syscall"
)

// dieWithParent: only Linux ties a child's life to its parent's; elsewhere Run and
// the tests' cleanup end the servers.
func dieWithParent() *syscall.SysProcAttr { return nil }

// owns: see Isolate, which asks only on Linux.
func owns(int, net.Conn) bool { return false }

func memoryDir() string { return "" }
