package cli

import (
	"syscall"

	"golang.org/x/sys/unix"
)

func init() {
	// The kernel kills the child when the thread that starts it ends. The lock of a killed distlock lives until its TTL
	// ends, so no other client works at the same time.
	tieToParent = func(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGKILL }
	// Without it the wait for the group may be longer.
	adoptOrphans = func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }
}
