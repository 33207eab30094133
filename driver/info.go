package driver

import "time"

// Info is what Inspect tells of a lock. A free lock has no Holders.
type Info struct {
	Name    string
	Mode    Mode // of the lock's kind as seen: Exclusive, Write, Read or Counted; 0 when free
	Limit   int  // Counted: permits in all
	Holders []Holder
	Waiters []Holder // those in the queue, in its order, as far as the coordinator knows

	// WaiterCount is at least len(Waiters): some coordinators know how many wait
	// and not who. -1: not known.
	WaiterCount int
}

// Holder is one that holds, or waits in the queue.
type Holder struct {
	// Owner identifies the hold. It is what a force unlock names, so a program that
	// shows an Info to people who may not break locks leaves it out.
	Owner string
	Mode  Mode

	// Fence is the first fence of the grant; within a span that is handed on inside
	// the holder's process the current one can be greater. 0: not known.
	Fence uint64

	// Held is how long it has been holding, or waiting in the queue, by the
	// coordinator's clock; negative: not known.
	Held time.Duration

	// Left is how long it holds on if it is not renewed; negative: not known, or
	// without end.
	Left time.Duration

	// Foreign says that the backend does not know the form of what is stored: it is the
	// lock of another library or script, or other data.
	Foreign bool

	Meta map[string]string // as given in Request.Meta
}
