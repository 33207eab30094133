package distlock

import "time"

// Observer is told what happens to a client's locks, so that metrics and traces
// can be made of it. Every field may be nil. The functions are called in line, by
// many goroutines at once: they must be quick and must not call the client.
type Observer struct {
	Waiting  func(Event) // a caller starts to wait, in line inside the process or at the backend
	GaveUp   func(Event) // a caller stopped waiting: Err says why, Waited how long
	Granted  func(Event) // the backend granted a lock: Waited, Fence
	HandedOn func(Event) // a waiter of this process got the lock without the backend: Waited, Fence
	Renewed  func(Event) // a hold was renewed
	Doubtful func(Event) // a renewal had no answer (Err); it is tried again until the lease's deadline
	Lost     func(Event) // a lease was lost: Err says why, Held how long it was held
	Released func(Event) // a lease was unlocked: Held; Err if the backend did not confirm
}

// Event is one thing that happened. Fields that do not apply are zero.
type Event struct {
	Name   string
	Mode   Mode
	Owner  string
	Fence  uint64
	Waited time.Duration // from the call of Lock on
	Held   time.Duration // from the grant on
	Err    error
}

func emit(f func(Event), e Event) {
	if f != nil {
		f(e)
	}
}
