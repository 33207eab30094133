package redislock

import (
	"fmt"
	"slices"
	"strings"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
)

// reservedStarts begin the keys that hold data beside a lock, in either layout and for
// Java, and the guards of package fenceredis. A lock with such a name could be the key
// that another lock, or another layout, is about to use.
var reservedStarts = []string{
	ownLinePrefix, placesPrefix, javaLinePrefix, javaTimeoutPrefix, tokenPrefix,
	"redisson_unlock_latch:", "distlock_guard:",
}

// reservedEnds end such keys. Before them stands the lock's name, which has braces there.
var reservedEnds = []string{permitsSuffix, holdSuffix, probeSuffix, ":distlock_guard"}

// checkName refuses names that can't be locks: those whose keys a cluster has in several
// places, and those whose keys are, or may become, another lock's.
func (b *Backend) checkName(name string) error {
	key := b.prefix + name
	if b.client.Strict() {
		if err := oneSlot(key); err != nil {
			return err
		}
	}
	if rule := reserved(key); rule != "" {
		return fmt.Errorf("%w: the name %s: keys that %s belong to other locks, which keep their data there", driver.ErrInvalid, driver.Quote(key), rule)
	}
	if inner, ok := braced(key); ok && b.layout.span == 1 {
		return fmt.Errorf("%w: the name %s: in the layout %q it would share keys with %s; use that", driver.ErrInvalid, driver.Quote(key), Redisson, driver.Quote(inner))
	}
	return nil
}

// checkPrefix refuses prefixes that no name may follow.
func (b *Backend) checkPrefix() error {
	if at := slices.IndexFunc(reservedStarts, func(s string) bool { return strings.HasPrefix(b.prefix, s) }); at >= 0 {
		return fmt.Errorf("%w: %q: keys that begin with %q belong to other locks", driver.ErrInvalid, b.prefix, reservedStarts[at])
	}
	if b.client.Strict() {
		return oneSlot(b.prefix)
	}
	return nil
}

// reserved says what makes a key one that stands beside a lock; empty if nothing does.
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

// braced returns what stands between the braces of a name such as {a}. By Redisson's rule
// a name without braces gets them, so both have the same keys beside them.
func braced(name string) (inner string, ok bool) {
	inner, open := strings.CutPrefix(name, "{")
	inner, closed := strings.CutSuffix(inner, "}")
	return inner, open && closed && inner != "" && !strings.ContainsRune(inner, '{')
}

// oneSlot is nil if all keys and channels of a lock lie in one slot, as a cluster
// demands: they begin or end with the name, which is put in braces if it has none.
func oneSlot(name string) error {
	if !strings.ContainsAny(name, "{}") {
		return nil
	}
	if tag, ok := redisconn.HashTag(name); ok && tag != "" {
		return nil
	}
	return fmt.Errorf("%w: the name %s: a Redis Cluster takes what stands between the first { and the next } as the place of a lock's keys, and here there is nothing: want a name without braces, or such as a{b}c",
		driver.ErrInvalid, driver.Quote(name))
}
