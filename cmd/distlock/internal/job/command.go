package job

import (
	"context"
	"os"
	"time"
)

// Policy says what happens to the command if the lock can't be renewed.
type Policy string

// The policies.
const (
	Term   Policy = "term"   // SIGTERM, and SIGKILL when the lock is lost
	Kill   Policy = "kill"   // SIGKILL
	Ignore Policy = "ignore" // nothing
)

// Lock is what the command runs under.
type Lock interface {
	Context() context.Context // ends when the lock is lost
	Deadline() time.Time      // when it is going to be lost; renewals postpone it
	Lost() string             // why it is lost; empty while it is not
}

// Command is a command that runs under a lock.
type Command struct {
	Path      string
	Args, Env []string
	Lock      Lock
	OnLoss    Policy
	Notice    time.Duration                    // how long before the deadline to act; 0: never
	Asked     <-chan struct{}                  // notified when another user asks for the lock
	Signals   <-chan os.Signal                 // those that this process has received
	Catch     func(...os.Signal)               // makes more of them arrive there
	Warnf     func(format string, args ...any) // does not block: it would delay signals to the command
}

// Result is how a command ended.
type Result struct {
	Code        int  // its exit code; 128 and the number of the signal that ended it
	Lost        bool // it was to end, or went on, because the lock could not be renewed
	GaveWay     bool // it was asked to end because another user asked for the lock
	Told        bool // a signal of the user asked it to end
	Interrupted bool // SIGINT ended it
}

// status is how a process ended: by itself with a code, or by a signal.
type status struct {
	code int
	by   os.Signal
}
