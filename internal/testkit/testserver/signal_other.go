//go:build !unix

package testserver

import (
	"os"
	"syscall"
)

// Systems without signals can only kill; Pause and Resume fail the test there.
var (
	term   os.Signal = os.Kill
	intr   os.Signal = os.Kill
	quit   os.Signal = os.Kill
	kill   os.Signal = os.Kill
	pause  os.Signal = os.Interrupt
	resume os.Signal = os.Interrupt
)

// apply does nothing: there is no root.
func (a *account) apply(attr *syscall.SysProcAttr) *syscall.SysProcAttr { return attr }
