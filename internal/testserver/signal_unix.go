//go:build unix

package testserver

import (
	"os"
	"syscall"
)

var (
	term   os.Signal = syscall.SIGTERM
	pause  os.Signal = syscall.SIGSTOP
	resume os.Signal = syscall.SIGCONT
)
