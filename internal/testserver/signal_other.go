//go:build !unix

package testserver

import "os"

// Systems without signals can only kill; Pause and Resume fail the test there.
var (
	term   os.Signal = os.Kill
	pause  os.Signal = os.Interrupt
	resume os.Signal = os.Interrupt
)
