//go:build !unix

package faultproxy

import "syscall"

func reuseAddr(_, _ string, _ syscall.RawConn) error { return nil }
