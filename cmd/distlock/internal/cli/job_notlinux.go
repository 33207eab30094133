//go:build unix && !linux

package cli

import "syscall"

// tieToParent: this system can't.
func tieToParent(*syscall.SysProcAttr) {}
