package cli

import "syscall"

// The kernel kills the child when the thread that starts it ends. The lock of a killed distlock lives until its TTL
// ends, so no other client works at the same time.
func init() {
	tieToParent = func(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGKILL }
}
