package distlock

import (
	"time"

	"github.com/distlock/distlock/driver"
)

// Options configure a Client. The zero value of a field means its default. New returns ErrInvalid
// for invalid values; it does not correct them. No time, here or in a LockOption, may be greater
// than ten years (driver.MaxTTL).
type Options struct {
	// TTL is how long a lock outlives a process that died: the backend frees it when it was not
	// renewed for so long. Default 30 s. A shorter TTL frees the locks of dead processes sooner. A
	// longer one survives longer pauses and outages: no lease is lost in an outage of half of the
	// TTL.
	TTL time.Duration

	// Margin is how long before the end of the TTL a lease is lost if it could not be renewed. It
	// makes up for clocks of different speed, and for the time that the work needs to stop. Less
	// than TTL. Default: a tenth of the TTL, 1 s at most.
	Margin time.Duration

	// HandoffMax is how often in a row a held lock may be handed off inside this process before it
	// is released to the backend, where other processes may wait. Default 8191; -1 means never.
	HandoffMax int

	// HandoffWindow is for how long in a row a held lock may be handed off inside this process, while
	// other processes wait in the backend's queue. Default 3 ms. Raise it for throughput, at the price
	// of longer waits elsewhere: each turn of this process may take that long.
	HandoffWindow time.Duration

	// MaxHold is the MaxHold of all locks without one of their own; see the LockOption. It ends
	// leases whose Unlock was forgotten, which would be renewed until the client is closed. Choose
	// it well above the longest work; give a lock that is rightly held for longer a greater MaxHold
	// of its own. Default: no limit.
	MaxHold time.Duration

	// CallTimeout bounds one call to the backend. A call without an answer by then is retried.
	// Default: a third of the TTL, 5 s at most.
	CallTimeout time.Duration

	// Meta is shown by Inspect. host, pid and program are added unless they are set here.
	Meta map[string]string

	// Observer is notified of what happens. Default: none.
	Observer *Observer
}

// The defaults of Options.
const (
	DefaultTTL           = 30 * time.Second
	DefaultHandoffMax    = 8191
	DefaultHandoffWindow = 3 * time.Millisecond
)

// Info says who holds a lock and who waits for it.
type Info = driver.Info

// Holder is a holder of a lock, or a waiter for it.
type Holder = driver.Holder

// Mode is how a lock is held: Exclusive, Write, Read or Counted.
type Mode = driver.Mode

// The modes: a Mutex is Exclusive, the sides of an RWMutex are Write and Read, a
// permit of a Semaphore is Counted.
const (
	Exclusive = driver.Exclusive
	Write     = driver.Write
	Read      = driver.Read
	Counted   = driver.Counted
)

// Observer is notified of what happens to a client's locks, for metrics and traces. Every field may
// be nil. The functions are called inline, by many goroutines at once: they must be quick and must
// not call the client.
type Observer struct {
	Waiting    func(Event) // a caller starts to wait, inside the process or at the backend
	GaveUp     func(Event) // a caller stopped waiting: Err says why, Waited how long
	Granted    func(Event) // the backend granted a lock: Waited, Fence
	HandedOn   func(Event) // a waiter of this process got the lock without the backend: Waited, Fence
	Renewed    func(Event) // a hold was renewed
	Unanswered func(Event) // a renewal had no answer (Err); it is retried until the lease's deadline
	Lost       func(Event) // a lease was lost: Err says why, Held how long it was held
	Released   func(Event) // a lease was unlocked: Held; Err if the backend did not confirm

	// Leaked is called when the garbage collector finds that a lease is held and that nothing
	// refers to it, or to a context that descends from its own: no Unlock can follow. Stack is
	// where it was taken. The lock stays held and is renewed, since the work under it may still be
	// in progress; Options.MaxHold ends it. Leases with WithoutRenewal are not reported, as they
	// end by themselves. Of the locks of a MultiLease at least the last is reported. While Leaked
	// is not nil, each Lock also records its stack.
	Leaked func(Event)
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
	Stack  string // where the lease was taken, the caller of Lock first; for Leaked
}

func emit(f func(Event), e Event) {
	if f != nil {
		f(e)
	}
}
