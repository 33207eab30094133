// Package cli is the command distlock: everything but its main function.
//
//	root.go       the root command
//	app.go        what all commands share: output, exit codes, messages without passwords
//	open.go       from a URL, a config file or neither to a client
//	run.go        holds locks while a command runs; run_options.go, acquire.go and job*.go belong to it
//	info.go       ls, show and unlock
//	verify.go     runs the conformance checks against the user's own server
//	demo*.go      a shop that sells more than it has
//
// # How run keeps its promise
//
// The command runs in its own process group, so that it can be stopped as a whole. One goroutine
// forwards signals, watches the deadline of the leases, and notices stops and exits. The group is
// told to stop before another client can get the lock. Renewals postpone that moment.
//
// On Linux, the command dies with distlock, even if distlock is killed. The lock of a killed
// distlock then ends with its TTL, and no other client works under it until then.
package cli
