//go:build !linux

package testserver

import "syscall"

// dieWithParent: only Linux ties a child's life to its parent's; elsewhere Run and
// the tests' cleanup end the servers.
func dieWithParent() *syscall.SysProcAttr { return nil }
