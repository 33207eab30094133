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

	// CallTimeout bounds one call to the backend. A call without an answer by then is retried. A renewal
	// has a quarter of its TTL at first.
	// Default: a third of the TTL, 5 s at most.
	CallTimeout time.Duration

	// Meta, UTF-8, is shown by Inspect. host, pid and program are added unless they are set here.
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
