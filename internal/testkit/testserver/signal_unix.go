//go:build unix

package testserver

import (
	"os"
	"syscall"
)

var (
	term   os.Signal = syscall.SIGTERM
	intr   os.Signal = syscall.SIGINT
	quit   os.Signal = syscall.SIGQUIT
	kill   os.Signal = syscall.SIGKILL
	pause  os.Signal = syscall.SIGSTOP
	resume os.Signal = syscall.SIGCONT
)

// apply makes what a process is started with start it as the account.
func (a *account) apply(attr *syscall.SysProcAttr) *syscall.SysProcAttr {
	if a == nil {
		return attr
	}
	if attr == nil {
		attr = new(syscall.SysProcAttr)
	}
	attr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	return attr
}
