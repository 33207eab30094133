package redislock

import (
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
)

// reservedStarts begin the keys that hold data beside a lock, in either layout and for
// Java, and the guards of package fenceredis. A lock with such a name could be a key
// of another lock.
var reservedStarts = []string{
	ownQueuePrefix, ticketsPrefix, javaQueuePrefix, javaTimeoutPrefix, tokenPrefix,
	"redisson_unlock_latch:", "distlock_guard:",
}

// reservedEnds end such keys. Before them stands the lock's name, which has braces there.
var reservedEnds = []string{permitsSuffix, holdSuffix, probeSuffix, ":distlock_guard"}

// reserved returns the rule by which a key may hold data beside a lock; empty if none does.
func reserved(key string) string {
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

func isNumber(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

// braced returns the text between the braces of a name such as {a}. By Redisson's rule
// a name without braces gets them, so both have the same keys beside them.
func braced(name string) (inner string, ok bool) {
	inner, open := strings.CutPrefix(name, "{")
	inner, closed := strings.CutSuffix(inner, "}")
	return inner, open && closed && inner != "" && !strings.ContainsRune(inner, '{')
}

// oneSlot returns an error unless all keys and channels of a lock lie in one slot, as a cluster
// demands: they begin or end with the name, which gets braces if it has none.
func oneSlot(name string) error {
	if !strings.ContainsAny(name, "{}") {
		return nil
	}
	if tag, ok := redisconn.HashTag(name); ok && tag != "" {
		return nil
	}
	return fmt.Errorf("%w: the name %s: a Redis Cluster takes what stands between the first { and the next } as what decides on the slot of a lock's keys, and here there is nothing: want a name without braces, or such as a{b}c",
		driver.ErrInvalid, driver.Quote(name))
}

// All keys of one lock lie in one slot of a cluster: Redisson's rule is that a name
// without a brace becomes the hash tag, and that one with a brace has its own.
func tagged(name string) string {
	if strings.ContainsRune(name, '{') {
		return name
	}
	return "{" + name + "}"
}

// holdKey returns the key that keeps what Inspect shows of a hold of a Redisson structure.
func holdKey(name, owner string) string { return tagged(name) + ":" + owner + holdSuffix }

func tokenKey(name string) string { return tokenPrefix + tagged(name) }

// permitsKey returns the key of a semaphore's permits. {a} and a have different keys: the
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

// javaQueueKeys returns the keys of a queue that Java shares: the keys of its fair lock, and between
// them the ends of our tickets.
func javaQueueKeys(name string) []string {
	n := tagged(name)
	return []string{javaQueuePrefix + n, ticketsPrefix + n, javaTimeoutPrefix + n}
}

// ownQueueKeys returns the keys of a queue that is ours alone. Unlike in Java, different names
// have different queues: "a" and "{a}" too.
func ownQueueKeys(name string) []string {
	queue, tickets := ownQueue(name)
	return []string{queue, tickets}
}

func ownQueue(name string) (queue, tickets string) {
	before, after := "{", "}"
	if strings.ContainsRune(name, '{') {
		before, after = ":", ""
	}
	both := ownQueuePrefix + before + name + after + ticketsPrefix + before + name + after
	at := len(ownQueuePrefix) + len(before) + len(name) + len(after)
	return both[:at], both[at:]
}

// The keys beside a lock begin or end so. No lock has such a name: see reserved.
const (
	javaQueuePrefix   = "redisson_lock_queue:"
	javaTimeoutPrefix = "redisson_lock_timeout:"
	tokenPrefix       = "redisson_lock_token:"
	ownQueuePrefix    = "distlock_line:"
	ticketsPrefix     = "distlock_places:"

	permitsSuffix = ":timeout"
	holdSuffix    = ":distlock"
	probeSuffix   = ":distlock:none"
	readerSuffix  = ":rwlock_timeout:" // and a number

	counterName = "distlock:fence"
)

// nameOfQueue undoes ownQueueKeys or javaQueueKeys; false for a key that is no queue.
func nameOfQueue(key, prefix string) (string, bool) {
	n, ok := strings.CutPrefix(key, prefix)
	if inner, is := braced(n); ok && is {
		return inner, true
	}
	if prefix == ownQueuePrefix {
		return strings.CutPrefix(n, ":")
	}
	return n, ok
}

func freeChannel(name string) string {
	if strings.ContainsRune(name, '{') {
		return "distlock_free:" + name
	}
	return "distlock_free:{" + name + "}"
}
func lockChannel(name string) string    { return "redisson_lock__channel:" + tagged(name) }
func rwChannel(name string) string      { return "redisson_rwlock:" + tagged(name) }
func permitsChannel(name string) string { return "redisson_sc:" + tagged(name) }

// thread is the thread number under which our holds appear to Java, where each Owner is a
// client with one thread.
const thread = ":1"

// field returns how an owner is written in Redisson's hashes. A longer Owner comes from
// Inspect, and is the field of a Java thread already.
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

// permitID returns the 16 bytes under which a permit is kept. An Owner that is no UUID stays
// as it is.
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
