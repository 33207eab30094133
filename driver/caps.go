package driver

import (
	"fmt"
	"strings"
	"time"
)

// Mode is how a lock is held.
type Mode uint8

// The modes. Exclusive is a mutex; Write and Read are the two sides of a
// read/write lock; Counted is a permit of a semaphore. Locks of different kinds
// (mutex, read/write, semaphore) under one name exclude each other, and wait for
// each other in one queue. Only where locks have another library's form, which keeps
// kinds apart, is the second refused, at once, with ErrInvalid.
const (
	Exclusive Mode = iota + 1
	Write
	Read
	Counted
)

var modeNames = [...]string{Exclusive: "exclusive", Write: "write", Read: "read", Counted: "counted"}

// String is the mode's name in lower case.
func (m Mode) String() string {
	if int(m) < len(modeNames) && m != 0 {
		return modeNames[m]
	}
	return "invalid"
}

// Alone reports whether a hold of this mode excludes every other hold.
func (m Mode) Alone() bool { return m == Exclusive || m == Write }

// SameKind reports whether two modes belong to one kind of lock: Read and Write do.
func (m Mode) SameKind(o Mode) bool {
	return m == o || (m == Read || m == Write) && (o == Read || o == Write)
}

// MarshalText is String.
func (m Mode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText reads what MarshalText writes. Any other text is ErrInvalid.
func (m *Mode) UnmarshalText(text []byte) error {
	for n := Exclusive; n <= Counted; n++ {
		if n.String() == string(text) {
			*m = n
			return nil
		}
	}
	return fmt.Errorf("%w: mode %.20q: want one of: %v", ErrInvalid, text, AllModes)
}

// ModeSet is a set of modes.
type ModeSet uint8

// Modes makes a set.
func Modes(modes ...Mode) ModeSet {
	var s ModeSet
	for _, m := range modes {
		s |= 1 << m
	}
	return s
}

// AllModes has every mode.
const AllModes ModeSet = 1<<Exclusive | 1<<Write | 1<<Read | 1<<Counted

// Has reports whether m is in the set.
func (s ModeSet) Has(m Mode) bool { return s&(1<<m) != 0 }

// String lists the modes, separated by spaces.
func (s ModeSet) String() string {
	var names []string
	for m := Exclusive; m <= Counted; m++ {
		if s.Has(m) {
			names = append(names, m.String())
		}
	}
	return strings.Join(names, " ")
}

// Queueing says whether waiters have a queue at the coordinator.
type Queueing uint8

// The kinds of queueing. QueueNever: a refused request leaves nothing behind, and Request.Queue
// is ErrUnsupported. QueueOnRequest: a refused request leaves a place in the queue if
// Request.Queue is set. QueueAlways: every waiter has a place in the queue.
const (
	QueueNever Queueing = iota
	QueueOnRequest
	QueueAlways
)

// String returns the name in lower case: "never", "on request", "always".
func (l Queueing) String() string {
	if int(l) < len(queueingNames) {
		return queueingNames[l]
	}
	return "invalid"
}

var queueingNames = [...]string{"never", "on request", "always"}

// MaxTTL is the greatest TTL that the core requests: ten years. A driver's sums of an instant and a
// TTL, in whatever unit, must have room for it and for the little that a combinator adds.
const MaxTTL = 10 * 365 * 24 * time.Hour

// TurnLife is for how long a free lock is kept for the first in its queue. A waiter whose process was
// stopped or has ended loses its place after that, so that it does not hold up the others. Sessions keep
// their places instead until they end.
const TurnLife = 2 * time.Second

// Longest returns the greatest TTL that may be requested: MaxTTL, or the constant of that name if
// it is zero or greater.
func (c Caps) Longest() time.Duration {
	if c.MaxTTL > 0 {
		return min(c.MaxTTL, MaxTTL)
	}
	return MaxTTL
}

// Caps describes the capabilities of a backend. It is a value, so that combinators can intersect it. The
// conformance suite proves every claim, and that everything else is refused with ErrUnsupported.
type Caps struct {
	// Name identifies the coordinator, in the same words from every process, without credentials:
	// "redis://db1:6379/0". Locks of several coordinators are taken in the order of lock name, then
	// this name.
	Name string

	Modes     ModeSet
	Fence     bool // grants carry fences that strictly increase
	Floor     bool // Renew honours Hold.Floor
	Session   bool // holds also end with the backend's session, or each with its connection
	Downgrade bool // a Write hold can become Read without being given up

	// Detached: holds outlive the connection that made them. Any other connection to the coordinator
	// can renew, re-acquire and release them by their Owner.
	Detached bool

	// Observed: the coordinator ends no hold by itself. One whose process died ends only for connections that have
	// seen it unchanged for its TTL, by their own clock: each of their refusals says in Retry what is left of that. For a
	// connection that has just come it lasts for another TTL, or for Late. Until another Owner has taken it, it may be renewed late.
	Observed bool

	// Late: a hold that is Observed ends for every connection, by the coordinator's own clock, so long after its TTL and a hundredth
	// of it. 0: it does not.
	Late time.Duration

	Queueing Queueing

	// QueuedModes are the modes to which Queueing applies; for all others it is QueueNever. Zero
	// means all of Modes.
	QueuedModes ModeSet

	// Revocable are the modes whose holders can be requested to release: see Revoker. Zero for
	// backends that are no Revokers.
	Revocable ModeSet

	// MinTTL and MaxTTL bound the TTL of a hold; zero means no bound but the constant MaxTTL.
	MinTTL, MaxTTL time.Duration

	// Poll is the shortest sensible pause between two attempts of one waiter that
	// has no Watch; zero means 10 ms. Where there is no queue either, and others take the lock in turns, it
	// becomes an eighth of that, or 20 ms.
	Poll time.Duration
}

// Ends reports whether a hold whose process died ends without anybody who watches it.
func (c Caps) Ends() bool { return !c.Observed || c.Late > 0 }

// Intersect returns what both can do, for combinators: it is Observed if one of them is. The name is c's. Queueing is QueueNever for
// modes in which they differ.
func (c Caps) Intersect(o Caps) Caps {
	c.Modes &= o.Modes
	c.Fence = c.Fence && o.Fence
	c.Floor = c.Floor && o.Floor
	c.Session = c.Session && o.Session
	c.Revocable &= o.Revocable
	c.Downgrade = c.Downgrade && o.Downgrade
	c.Detached = c.Detached && o.Detached
	late := max(c.Late, o.Late)
	if c.Observed && c.Late == 0 || o.Observed && o.Late == 0 {
		late = 0
	}
	c.Observed, c.Late = c.Observed || o.Observed, late
	c.Queueing, c.QueuedModes = c.intersectQueueing(o)
	c.MinTTL = max(c.MinTTL, o.MinTTL)
	if c.MaxTTL == 0 || o.MaxTTL > 0 && o.MaxTTL < c.MaxTTL {
		c.MaxTTL = o.MaxTTL
	}
	c.Poll = max(c.Poll, o.Poll)
	return c
}

// intersectQueueing returns the Queueing of both, and the modes of c in which they agree on it.
func (c Caps) intersectQueueing(o Caps) (Queueing, ModeSet) {
	var agreed ModeSet
	for m := Exclusive; m <= Counted; m++ {
		if q := c.QueueingOf(m); c.Modes.Has(m) && q != QueueNever && q == o.QueueingOf(m) {
			agreed |= Modes(m)
		}
	}
	switch agreed {
	case 0:
		return QueueNever, 0
	case c.Modes:
		return c.Queueing, 0
	}
	return c.Queueing, agreed
}

// QueueingOf returns Queueing for locks of mode m.
func (c Caps) QueueingOf(m Mode) Queueing {
	if c.QueuedModes != 0 && !c.QueuedModes.Has(m) {
		return QueueNever
	}
	return c.Queueing
}
