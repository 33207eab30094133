// Package layouts says how locks are written in Redis: which keys, values, channels and messages they have, and what tells
// them from other data. It sends nothing.
package layouts

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
)

// Layout is how the locks of a backend are written.
type Layout struct {
	Redisson bool   // as Redisson writes them; otherwise an exclusive lock is a string
	Prefix   string // of all names

	// Span is how many fences each number of the counter stands for.
	Span uint64

	// MaxDrawn is how many entries about the fence counter keeps, for unfenced notes. scripts/fence_stream.lua has the same rule.
	MaxDrawn string

	// QueuePrefix begins the key of a queue.
	QueuePrefix string

	strict bool // a script may have keys of one slot only
	modes  [driver.Counted + 1]*Mode
}

// Mode is how the holds of one mode are written.
type Mode struct {
	// Field returns how an owner is written.
	Field func(owner string) string
	// RenewalField returns how a renewal finds it.
	RenewalField func(owner string) string

	// Keys appends the keys of a hold, the same for the three scripts; a renewal needs the
	// first RenewalKeys.
	Keys        func(to []string, key, owner string) []string
	RenewalKeys int
	WritesFence bool // a renewal writes the fence into the note

	// AcquireArgs appends the arguments that an attempt needs, and ReleaseArgs what stands behind a release's field and channel.
	AcquireArgs func(to []string, key, note string, r driver.Request) []string
	ReleaseArgs func(to []string, key string) []string

	// Channel returns the channel of a lock, on which releases are published.
	Channel     func(key string) string
	OwnChannels bool // each queued waiter has a channel of its own, as Java has it
	// Wakes returns how many waiters a message on the channel lets in.
	Wakes func(message string) int
	Span  uint64 // of a grant
}

// Mode returns how the holds of a mode are written.
func (l *Layout) Mode(m driver.Mode) *Mode { return l.modes[m] }

// fencesPerGrant is how many fences each grant of the string layout has. The counter follows
// the clock in microseconds, which replaces it if it is lost. Its number is multiplied, so that
// many fences do not make the counter run ahead of the clock.
const fencesPerGrant = 1024

// maxHandoffs is how many of them a grant has for hand-off.
const maxHandoffs = fencesPerGrant / 2

// String writes a lock as SET name value NX PX does: a string, whose value begins with the Owner. Readers and permits
// have a marker in its place, and are kept beside it.
func String(prefix string, strict bool) *Layout {
	l := &Layout{Prefix: prefix, Span: fencesPerGrant, MaxDrawn: "100000", QueuePrefix: ownQueuePrefix, strict: strict}
	if strings.HasSuffix(l.Counter(""), "}") { // one of each slot
		l.MaxDrawn = "100"
	}
	exclusive := Mode{
		Field:        plain,
		RenewalField: plain,
		Keys: func(to []string, key, _ string) []string {
			return append(to, key, QueueKey(key), ownKey(ticketsPrefix, key))
		},
		RenewalKeys: 1,
		WritesFence: true,
		AcquireArgs: func(to []string, _, note string, r driver.Request) []string {
			// The note begins with the Owner.
			return append(to, note, Millis(r.TTL), Bit(r.Queue))
		},
		ReleaseArgs: noArgs,
		Channel:     FreeChannel,
		Wakes:       wakeOne,
		Span:        maxHandoffs,
	}
	write := exclusive
	write.Keys = func(to []string, key, _ string) []string { return sharedKeys(to, key) } // it may have become a reader
	write.AcquireArgs = func(to []string, key, note string, r driver.Request) []string {
		return append(exclusive.AcquireArgs(to, key, note, r), "w")
	}
	read := write
	read.RenewalKeys, read.WritesFence, read.Span, read.Wakes = 3, false, 1, func(string) int { return wakeAll }
	read.AcquireArgs = func(to []string, key, note string, r driver.Request) []string {
		return append(exclusive.AcquireArgs(to, key, note, r), "r", FreeChannel(key))
	}
	counted := read
	counted.Wakes = func(message string) int { return cmp.Or(wakePermits(message), wakeAll) }
	counted.AcquireArgs = func(to []string, key, note string, r driver.Request) []string {
		return append(exclusive.AcquireArgs(to, key, note, r), "p"+strconv.Itoa(r.Limit), FreeChannel(key))
	}
	l.modes = [...]*Mode{driver.Exclusive: &exclusive, driver.Write: &write, driver.Read: &read, driver.Counted: &counted}
	return l
}

// Redisson writes an exclusive lock as Redisson's RLock and RFencedLock do.
//
// Hold counts are set to 1 and never counted up: a second attempt of an Owner is for the same
// hold, also when the first answer was lost.
func Redisson(prefix string, strict bool) *Layout {
	l := &Layout{Redisson: true, Prefix: prefix, Span: 1, QueuePrefix: javaQueuePrefix, strict: strict}
	l.modes[driver.Exclusive] = &Mode{
		Field:        Field,
		RenewalField: Field,
		Keys: func(to []string, key, owner string) []string {
			return append(append(to, key, HoldKey(key, owner)), l.QueueKeys(key)...)
		},
		RenewalKeys: 2,
		AcquireArgs: func(to []string, _, note string, r driver.Request) []string {
			return append(to, Field(r.Owner), Millis(r.TTL), note, Bit(r.Queue))
		},
		ReleaseArgs: noArgs,
		Channel:     LockChannel,
		OwnChannels: true,
		Wakes:       wakeOne,
		Span:        1,
	}
	l.addReadWrite()
	l.addCounted()
	return l
}

// addReadWrite adds RReadWriteLock.
func (l *Layout) addReadWrite() {
	write := &Mode{
		Field:        Field,
		RenewalField: func(owner string) string { return Field(owner) + ":write" },
		Keys: func(to []string, key, owner string) []string {
			return append(to, key, HoldKey(key, owner), ReaderKey(key, owner))
		},
		RenewalKeys: 2,
		AcquireArgs: func(to []string, _, note string, r driver.Request) []string {
			return append(to, Field(r.Owner), Millis(r.TTL), note)
		},
		ReleaseArgs: func(to []string, key string) []string { return append(to, Tagged(key)) },
		Channel:     RWChannel,
		Wakes:       wakeReaders,
		Span:        l.modes[driver.Exclusive].Span,
	}
	read := *write
	read.RenewalField, read.RenewalKeys, read.Span = Field, 3, 1
	read.AcquireArgs = func(to []string, key, note string, r driver.Request) []string {
		return append(to, Field(r.Owner), Millis(r.TTL), note, RWChannel(key))
	}
	l.modes[driver.Write], l.modes[driver.Read] = write, &read
}

// addCounted adds RPermitExpirableSemaphore. In Java it is made once (trySetPermits) and stays until it is deleted: a
// Java waiter whose semaphore is gone waits for ever.
func (l *Layout) addCounted() {
	l.modes[driver.Counted] = &Mode{
		Field:        PermitID,
		RenewalField: PermitID,
		Keys: func(to []string, key, owner string) []string {
			return append(to, key, HoldKey(key, owner), PermitsKey(key))
		},
		RenewalKeys: 3,
		AcquireArgs: func(to []string, key, note string, r driver.Request) []string {
			return append(to, PermitID(r.Owner), Millis(r.TTL), note, PermitsChannel(key), strconv.Itoa(r.Limit))
		},
		ReleaseArgs: noArgs,
		Channel:     PermitsChannel,
		Wakes:       wakePermits,
		Span:        1,
	}
}

func plain(owner string) string { return owner }

func noArgs(to []string, _ string) []string { return to }

// Counter returns the key of a name's fence counter.
//
// In the layout "string" it is one for all names, or for the names of one slot: a script of a cluster reaches no other slot.
// A prefix with a hash tag has all its names in one.
func (l *Layout) Counter(name string) string {
	switch {
	case l.Redisson:
		return TokenKey(l.Prefix + name)
	case l.strict:
		return slotCounter(l.Prefix, name)
	}
	return l.Prefix + counterName
}

func slotCounter(prefix, name string) string {
	if _, ok := redisconn.HashTag(prefix); ok {
		return prefix + counterName
	}
	return prefix + counterName + ":{" + redisconn.SlotTags()[redisconn.SlotOf(prefix+name)] + "}"
}

// QueueKeys returns the keys of the queue of a lock: the queue itself, the ends of our waiters' tickets, and in the
// layout "redisson" the ends of Java's.
func (l *Layout) QueueKeys(key string) []string {
	if l.Redisson {
		n := Tagged(key)
		return []string{javaQueuePrefix + n, ticketsPrefix + n, javaTimeoutPrefix + n}
	}
	return []string{QueueKey(key), ownKey(ticketsPrefix, key)}
}

// QueueKey returns the key that exists while a lock of the layout "string" is waited for.
func QueueKey(key string) string { return ownKey(ownQueuePrefix, key) }

// ChannelFor returns the channel that notifies req's waiter: if it is queued, the channel of its
// client, or one of its own.
func (m *Mode) ChannelFor(key string, req driver.Request) string {
	switch {
	case req.Queue && m.OwnChannels:
		return m.Channel(key) + ":" + m.Field(req.Owner)
	case req.Queue:
		return m.ClientChannel(key, req.Owner)
	}
	return m.Channel(key)
}

// ClientChannel returns the channel that notifies the queued waiters of owner's client. The message is
// the Owner of the waiter.
func (m *Mode) ClientChannel(key, owner string) string {
	return m.Channel(key) + ":" + owner[:min(len(owner), driver.OwnersStart)]
}

const wakeAll = 1 << 30

// queuedRelease is the message on the channel of a lock of the layout "redisson" that was released while
// others are queued: the first of them is notified otherwise. Java reads it as 0, like its own message.
const queuedRelease = "00"

// wakeOne says that a released exclusive lock lets one waiter in.
func wakeOne(message string) int {
	if message == queuedRelease {
		return 0
	}
	return 1
}

// wakePermits reads a message about a semaphore: the number of free permits.
func wakePermits(message string) int {
	n, err := strconv.Atoi(message)
	if err != nil {
		return wakeAll
	}
	return n
}

// wakeReaders reads Redisson's message on a read/write lock's channel. The last reader sends "0",
// for which only a writer can wait; a writer sends "1".
func wakeReaders(message string) int {
	if message == "0" {
		return 1
	}
	return wakeAll
}
