package layouts

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
)

// reservedStarts begin the keys that hold data beside a lock, in either layout and for
// Java, and the guards of package fenceredis. A lock with such a name could be a key
// of another lock.
var reservedStarts = []string{
	ownQueuePrefix, ticketsPrefix, holdersPrefix, notesPrefix, javaQueuePrefix, javaTimeoutPrefix, tokenPrefix,
	"redisson_unlock_latch:", "distlock_guard:",
}

// reservedEnds end such keys. Before them stands the lock's name, which has braces there.
var reservedEnds = []string{permitsSuffix, holdSuffix, probeSuffix, ":distlock_guard"}

// Reserved returns the rule by which a key may hold data beside a lock; empty if none does.
func Reserved(key string) string {
	for _, start := range reservedStarts {
		if strings.HasPrefix(key, start) {
			return fmt.Sprintf("begin with %q", start)
		}
	}
	open := strings.IndexByte(key, '{')
	if isCounter(key, open) {
		return fmt.Sprintf("end in %q, or that and a slot,", counterName)
	}
	if open < 0 {
		return ""
	}
	for _, end := range reservedEnds {
		if strings.HasSuffix(key, end) {
			return fmt.Sprintf("have a brace and end in %q", end)
		}
	}
	if at := strings.LastIndex(key, readerSuffix); at >= 0 && isNumber(key[at+len(readerSuffix):]) {
		return fmt.Sprintf("have a brace and end in %q and a number", readerSuffix)
	}
	return ""
}

// isCounter reports whether a key is a fence counter, of whatever prefix. Its first brace
// is at open.
func isCounter(key string, open int) bool {
	if strings.HasSuffix(key, counterName) {
		return true
	}
	if open < 0 || key[len(key)-1] != '}' {
		return false
	}
	at := strings.LastIndexByte(key, '{')
	return strings.HasSuffix(key[:at], counterName+":") && isNumber(key[at+1:len(key)-1])
}

// CheckName refuses names whose keys a cluster has in several slots, and names whose keys may be
// another lock's.
func (l *Layout) CheckName(name string) error {
	key := l.Prefix + name
	if !strings.ContainsAny(key, ":{}") {
		return nil // as all keys beside a lock have one of these
	}
	if l.strict {
		if err := OneSlot(key); err != nil {
			return err
		}
	}
	if rule := Reserved(key); rule != "" {
		return fmt.Errorf("%w: the name %s: keys that %s belong to other locks, which keep their data there", driver.ErrInvalid, driver.Quote(key), rule)
	}
	if inner, ok := Braced(key); ok && l.Redisson {
		return fmt.Errorf("%w: the name %s: in the layout \"redisson\" it would share keys with %s; use that", driver.ErrInvalid, driver.Quote(key), driver.Quote(inner))
	}
	return nil
}

// CheckPrefix refuses prefixes that no name may follow.
func (l *Layout) CheckPrefix() error {
	if at := slices.IndexFunc(reservedStarts, func(start string) bool { return strings.HasPrefix(l.Prefix, start) }); at >= 0 {
		return fmt.Errorf("%w: %q: keys that begin with %q belong to other locks", driver.ErrInvalid, l.Prefix, reservedStarts[at])
	}
	if l.strict {
		return OneSlot(l.Prefix)
	}
	return nil
}

func isNumber(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

// Braced returns the text between the braces of a name such as {a}. By Redisson's rule
// a name without braces gets them, so both have the same keys beside them.
func Braced(name string) (inner string, ok bool) {
	inner, open := strings.CutPrefix(name, "{")
	inner, closed := strings.CutSuffix(inner, "}")
	return inner, open && closed && inner != "" && !strings.ContainsRune(inner, '{')
}

// OneSlot returns an error unless all keys and channels of a lock lie in one slot, as a cluster
// demands: they begin or end with the name, which gets braces if it has none.
func OneSlot(name string) error {
	if !strings.ContainsAny(name, "{}") {
		return nil
	}
	if tag, ok := redisconn.HashTag(name); ok && tag != "" {
		return nil
	}
	return fmt.Errorf("%w: the name %s: a Redis Cluster takes what stands between the first { and the next } as what decides on the slot of a lock's keys, and here there is nothing: want a name without braces, or such as a{b}c",
		driver.ErrInvalid, driver.Quote(name))
}

// Tagged returns the start of the keys beside a lock. All keys of one lock lie in one slot of a cluster: Redisson's
// rule is that a name without a brace becomes the hash tag, and that one with a brace has its own.
func Tagged(name string) string {
	if strings.ContainsRune(name, '{') {
		return name
	}
	return "{" + name + "}"
}

// HoldKey returns the key that keeps what Inspect shows of a hold of a Redisson structure.
func HoldKey(name, owner string) string { return Tagged(name) + ":" + owner + holdSuffix }

// TokenKey returns the key of a fence counter of the layout "redisson".
func TokenKey(name string) string { return tokenPrefix + Tagged(name) }

// ProbeKey returns a key that never exists.
func ProbeKey(name string) string { return Tagged(name) + probeSuffix }

// PermitsKey returns the key of a semaphore's permits.
func PermitsKey(name string) string { return Tagged(name) + permitsSuffix }

// ReaderKey returns the key that lives as long as a reader's hold.
func ReaderKey(name, owner string) string {
	return Tagged(name) + ":" + Field(owner) + readerSuffix + "1"
}

// ownKey returns a key of the layout "string" beside a lock. Unlike in Java, different names have different keys: "a" and
// "{a}" too.
func ownKey(prefix, name string) string {
	if strings.IndexByte(name, '{') >= 0 {
		return prefix + ":" + name
	}
	return prefix + "{" + name + "}"
}

// sharedKeys appends the keys of a lock that readers or permits may hold: its name, who they are, their notes, and the queue.
func sharedKeys(to []string, name string) []string {
	return append(to, name, ownKey(holdersPrefix, name), ownKey(notesPrefix, name), QueueKey(name), ownKey(ticketsPrefix, name))
}

// The keys beside a lock begin or end so. No lock has such a name: see Reserved.
const (
	javaQueuePrefix   = "redisson_lock_queue:"
	javaTimeoutPrefix = "redisson_lock_timeout:"
	tokenPrefix       = "redisson_lock_token:"
	ownQueuePrefix    = "distlock_line:"
	ticketsPrefix     = "distlock_places:"
	holdersPrefix     = "distlock_holders:"
	notesPrefix       = "distlock_notes:"

	permitsSuffix = ":timeout"
	holdSuffix    = ":distlock"
	probeSuffix   = ":distlock:none"
	readerSuffix  = ":rwlock_timeout:" // and a number

	counterName = "distlock:fence"
)

// QueueName undoes QueueKeys; false for a key that is no queue.
func (l *Layout) QueueName(key string) (string, bool) {
	n, ok := strings.CutPrefix(key, l.QueuePrefix)
	if inner, is := Braced(n); ok && is {
		return inner, true
	}
	if !l.Redisson {
		return strings.CutPrefix(n, ":")
	}
	return n, ok
}

// FreeChannel returns the channel of a lock of the layout "string".
func FreeChannel(name string) string {
	if strings.ContainsRune(name, '{') {
		return "distlock_free:" + name
	}
	return "distlock_free:{" + name + "}"
}

// The channels of Redisson's locks.
func LockChannel(name string) string    { return "redisson_lock__channel:" + Tagged(name) }
func RWChannel(name string) string      { return "redisson_rwlock:" + Tagged(name) }
func PermitsChannel(name string) string { return "redisson_sc:" + Tagged(name) }

// thread is the thread number under which our holds appear to Java, where each Owner is a
// client with one thread.
const thread = ":1"

// Field returns how an owner is written in Redisson's hashes. A longer Owner comes from
// Inspect, and is the field of a Java thread already.
func Field(owner string) string {
	if len(owner) == OwnerLen {
		return owner + thread
	}
	return owner
}

// OwnerOf undoes Field.
func OwnerOf(field string) string {
	field = strings.TrimSuffix(field, ":write")
	if owner, ok := strings.CutSuffix(field, thread); ok && len(owner) == OwnerLen {
		return owner
	}
	return field
}

// OwnerLen is the length of an Owner of distlock's.
const OwnerLen = 36

// PermitID returns the 16 bytes under which a permit is kept. An Owner that is no UUID stays
// as it is.
func PermitID(owner string) string {
	id, err := hex.DecodeString(strings.ReplaceAll(owner, "-", ""))
	if err != nil || len(id) != 16 {
		return owner
	}
	return string(id)
}

// PermitOwner undoes PermitID.
func PermitOwner(id string) string {
	if len(id) != 16 {
		return id
	}
	h := hex.EncodeToString([]byte(id))
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}
