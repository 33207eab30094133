//go:build unix && !linux

package cli

import "syscall"

// tieToParent does nothing: this system has no such feature.
func tieToParent(*syscall.SysProcAttr) {}
