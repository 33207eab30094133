package cli

import "syscall"

// tieToParent has the child killed when the thread that starts it ends. The lock of
// a killed distlock lives on for its TTL, so nobody else works at the same time.
func tieToParent(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGKILL }
