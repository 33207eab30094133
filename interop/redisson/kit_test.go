package redisson

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/interop"
)

// lease is the life of locks that are not meant to end by themselves.
const lease = 30 * time.Second

// tokenOf is the key of a lock's token.
func tokenOf(name string) string {
	if !strings.Contains(name, "{") {
		name = "{" + name + "}"
	}
	return "redisson_lock_token:" + name
}

// kind is a kind of lock, as both sides know it.
type kind struct{ interop.Kind }

var (
	plain  = kind{interop.Kind{Java: "lock", Sharing: interop.Alone, Lock: interop.Mutex}}
	fenced = kind{interop.Kind{Java: "fenced", Sharing: interop.Alone, Lock: interop.Mutex}}
	fair   = kind{interop.Kind{Java: "fair", Sharing: interop.Alone, Lock: interop.Queue}}
	write  = kind{interop.Kind{Java: "write", Sharing: interop.Alone, Lock: interop.Writer}}
	read   = kind{interop.Kind{Java: "read", Sharing: interop.Reading, Lock: interop.Reader}}
	multi  = kind{interop.Kind{Java: "multi", Sharing: interop.Alone, Lock: interop.Several}}
	red    = kind{interop.Kind{Java: "red", Sharing: interop.Alone, Lock: interop.Mutex}}
)

// permit is a semaphore with a number of permits.
func permit(limit int) kind {
	return kind{interop.Kind{Java: "permit", Sharing: interop.Counted, Limit: limit, Lock: interop.Permit(limit)}}
}

// name is the name that both sides use for a lock of the kind: a multi-lock's has two.
func (k kind) name(base string) string {
	if k.Java == "multi" {
		return base + "-a," + base + "-b"
	}
	return base
}

// left are the keys that remain when the lock is not held any more.
func (k kind) left(base string) []string {
	switch k.Java {
	case "multi":
		return []string{tokenOf(base + "-a"), tokenOf(base + "-b")}
	case "permit":
		return []string{base, tokenOf(base)}
	case "red":
		return slices.Repeat([]string{tokenOf(base)}, members)
	}
	return []string{tokenOf(base)}
}

// javaLock is how a Java thread takes a lock.
func (k kind) javaLock(client, name string, life time.Duration) []string {
	if k.Java == "permit" {
		return []string{"acquire", client, name, interop.Millis(life)}
	}
	return []string{"lock", client, k.Java, name, interop.Millis(life)}
}

// javaUnlock is how it gives it back; reply is the answer to javaLock.
func (k kind) javaUnlock(client, name string, reply []string) []string {
	if k.Java == "permit" {
		return []string{"release", client, name, reply[1]}
	}
	return []string{"unlock", client, k.Java, name}
}

// prepare makes the semaphore, as the Java side must before its first use.
func (k kind) prepare(t *testing.T, th *interop.Thread, client, name string) {
	t.Helper()
	if k.Java == "permit" {
		th.Call("permits", client, name, strconv.Itoa(k.Limit)).Says(t, "true")
	}
}
