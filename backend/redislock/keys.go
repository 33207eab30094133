package redislock

import (
	"encoding/hex"
	"strings"
)

// All keys of one lock lie in one slot of a cluster: Redisson's rule is that a name
// without a brace becomes the hash tag, and that one with a brace has its own.
func tagged(name string) string {
	if strings.ContainsRune(name, '{') {
		return name
	}
	return "{" + name + "}"
}

// holdKey is where a hold of a Redisson structure keeps what Inspect shows.
func holdKey(name, owner string) string { return tagged(name) + ":" + owner + holdSuffix }

func tokenKey(name string) string { return tokenPrefix + tagged(name) }

// permitsKey is where a semaphore's permits are. Those of {a} are not those of a: the
// layout "string" has both.
func permitsKey(name string) string {
	if _, ok := braced(name); ok {
		return name + holdSuffix + permitsSuffix
	}
	return tagged(name) + permitsSuffix
}

func readerKey(name, owner string) string {
	return tagged(name) + ":" + field(owner) + readerSuffix + "1"
}

// javaLine are the keys of a line that Java shares: those of its fair lock, and between
// them our places.
func javaLine(name string) []string {
	n := tagged(name)
	return []string{javaLinePrefix + n, placesPrefix + n, javaTimeoutPrefix + n}
}

// ownLine are the keys of a line that is ours alone. Unlike Java's, names that differ
// have lines that differ: "a" and "{a}" too.
func ownLine(name string) []string {
	n := tagged(name)
	if n == name {
		n = ":" + n
	}
	return []string{ownLinePrefix + n, placesPrefix + n}
}

// What the keys beside a lock begin or end with. No lock has such a name: see reserved.
const (
	javaLinePrefix    = "redisson_lock_queue:"
	javaTimeoutPrefix = "redisson_lock_timeout:"
	tokenPrefix       = "redisson_lock_token:"
	ownLinePrefix     = "distlock_line:"
	placesPrefix      = "distlock_places:"

	permitsSuffix = ":timeout"
	holdSuffix    = ":distlock"
	probeSuffix   = ":distlock:none"
	readerSuffix  = ":rwlock_timeout:" // and a number

	counterName = "distlock:fence"
)

// nameOfLine undoes the prefix rule of either; false for a key that is no line.
func nameOfLine(key, prefix string) (string, bool) {
	n, ok := strings.CutPrefix(key, prefix)
	if inner, is := braced(n); ok && is {
		return inner, true
	}
	if prefix == ownLinePrefix {
		return strings.CutPrefix(n, ":")
	}
	return n, ok
}

func freeChannel(name string) string    { return "distlock_free:" + tagged(name) }
func lockChannel(name string) string    { return "redisson_lock__channel:" + tagged(name) }
func rwChannel(name string) string      { return "redisson_rwlock:" + tagged(name) }
func permitsChannel(name string) string { return "redisson_sc:" + tagged(name) }

// thread is the thread number under which our holds appear to Java. Each Owner is a
// client of its own there, with one thread.
const thread = ":1"

// field is how an owner is written in Redisson's hashes. A longer Owner comes from
// Inspect and is a Java thread's, written already.
func field(owner string) string {
	if len(owner) == ownerLen {
		return owner + thread
	}
	return owner
}

// ownerOf undoes field.
func ownerOf(field string) string {
	field = strings.TrimSuffix(field, ":write")
	if owner, ok := strings.CutSuffix(field, thread); ok && len(owner) == ownerLen {
		return owner
	}
	return field
}

const ownerLen = 36

// permitID is the 16 bytes under which a permit is kept. An Owner that is no UUID is
// taken as it is.
func permitID(owner string) string {
	id, err := hex.DecodeString(strings.ReplaceAll(owner, "-", ""))
	if err != nil || len(id) != 16 {
		return owner
	}
	return string(id)
}

// permitOwner undoes permitID.
func permitOwner(id string) string {
	if len(id) != 16 {
		return id
	}
	h := hex.EncodeToString([]byte(id))
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}
