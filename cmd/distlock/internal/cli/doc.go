// Package cli is the command distlock: everything but its main function.
//
// A subject is a file, or a few with a common prefix:
//
//	cli.go      the root command and how a command ends
//	exit.go     exit codes, and messages without passwords
//	open.go     from a URL, or none, to a client
//	run*.go     hold locks while a command runs; job_*.go is that command
//	info*.go    ls, show and unlock
//	verify*.go  the conformance checks against the user's own server
//	demo*.go    the shop that sells more than it has
//
// # How run keeps its promise
//
// The command runs in a process group of its own, so that it can be stopped as a
// whole. One goroutine sees to it: signals are passed on, the deadline of the
// leases is watched, stops and ends are noticed. The group is told to stop before
// the lock can belong to someone else; renewals move that moment.
//
// Where the system can do it the command dies with distlock, however that dies. The
// lock of a killed distlock ends with its TTL, and nobody works under it until then.
package cli
