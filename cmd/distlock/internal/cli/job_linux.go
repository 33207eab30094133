package cli

import "syscall"

// tieToParent makes the kernel kill the child when the thread that starts it ends. The lock of a killed
// distlock lives until its TTL ends, so no other client works at the same time.
func tieToParent(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGKILL }
