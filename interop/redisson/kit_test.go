package redisson

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock"
)

// lease is the life of locks that are not meant to end by themselves.
const lease = 30 * time.Second

func eventually(t *testing.T, otherwise func() string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(otherwise())
		}
	}
}

var names atomic.Int64

// newName is a name of the test's own.
func newName(t *testing.T) string {
	return fmt.Sprintf("%s-%d", strings.ReplaceAll(t.Name(), "/", "-"), names.Add(1))
}

// tokenOf is the key of a lock's token.
func tokenOf(name string) string {
	if !strings.Contains(name, "{") {
		name = "{" + name + "}"
	}
	return "redisson_lock_token:" + name
}

// kind is a kind of lock, as both sides know it.
type kind struct {
	java    string
	sharing string // alone, reading or counted
	lock    func(c *distlock.Client, name string) locker
	limit   int // of a semaphore
}

// locker is a lock of any kind.
type locker struct {
	lock, try func(context.Context) (hold, error)
}

// hold is what remains of a Lease or a MultiLease.
type hold interface {
	Unlock(context.Context) error
	Err() error
	Context() context.Context
}

func fenceOf(h hold) uint64 {
	if l, ok := h.(interface{ Fence() uint64 }); ok {
		return l.Fence()
	}
	return 0
}

// heldBy makes a hold of what a lock returned.
func heldBy[L hold](l L, err error) (hold, error) {
	if err != nil {
		return nil, err
	}
	return l, nil
}

func lockerOf[L hold](lock, try func(context.Context) (L, error)) locker {
	return locker{
		lock: func(ctx context.Context) (hold, error) { return heldBy(lock(ctx)) },
		try:  func(ctx context.Context) (hold, error) { return heldBy(try(ctx)) },
	}
}

var (
	plain  = kind{java: "lock", sharing: "alone", lock: mutex}
	fenced = kind{java: "fenced", sharing: "alone", lock: mutex}
	fair   = kind{java: "fair", sharing: "alone", lock: queue}
	write  = kind{java: "write", sharing: "alone", lock: writer}
	read   = kind{java: "read", sharing: "reading", lock: reader}
	multi  = kind{java: "multi", sharing: "alone", lock: several}
	red    = kind{java: "red", sharing: "alone", lock: mutex}
)

func queue(c *distlock.Client, name string) locker {
	m := c.Mutex(name, distlock.Fair())
	return lockerOf(m.Lock, m.TryLock)
}

// permit is a semaphore with a number of permits.
func permit(limit int) kind {
	return kind{java: "permit", sharing: "counted", limit: limit, lock: func(c *distlock.Client, name string) locker {
		s := c.Semaphore(name, limit)
		return lockerOf(s.Acquire, s.TryAcquire)
	}}
}

func mutex(c *distlock.Client, name string) locker {
	m := c.Mutex(name)
	return lockerOf(m.Lock, m.TryLock)
}

func writer(c *distlock.Client, name string) locker {
	m := c.RWMutex(name)
	return lockerOf(m.Lock, m.TryLock)
}

func reader(c *distlock.Client, name string) locker {
	m := c.RWMutex(name)
	return lockerOf(m.RLock, m.TryRLock)
}

// several is a multi-lock of the locks in a name with commas.
func several(c *distlock.Client, name string) locker {
	var all []distlock.Locker
	for part := range strings.SplitSeq(name, ",") {
		all = append(all, c.Mutex(part))
	}
	m := distlock.Multi(all...)
	return lockerOf(m.Lock, m.TryLock)
}

// name is the name that both sides use for a lock of the kind: a multi-lock's has two.
func (k kind) name(base string) string {
	if k.java == "multi" {
		return base + "-a," + base + "-b"
	}
	return base
}

// left are the keys that remain when nobody holds the lock any more.
func (k kind) left(base string) []string {
	switch k.java {
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
	if k.java == "permit" {
		return []string{"acquire", client, name, millis(life)}
	}
	return []string{"lock", client, k.java, name, millis(life)}
}

// javaUnlock is how it gives it back; reply is the answer to javaLock.
func (k kind) javaUnlock(client, name string, reply []string) []string {
	if k.java == "permit" {
		return []string{"release", client, name, reply[1]}
	}
	return []string{"unlock", client, k.java, name}
}

// prepare makes the semaphore, as the Java side must before anybody uses it.
func (k kind) prepare(t *testing.T, th *thread, client, name string) {
	t.Helper()
	if k.java == "permit" {
		th.call("permits", client, name, strconv.Itoa(k.limit)).says(t, "true")
	}
}

func take(t *testing.T, l locker) hold {
	t.Helper()
	return startWaiter(t, l).granted(t).hold
}

// grant is what a waiter got, and when.
type grant struct {
	hold
	at  time.Time
	err error
}

// waiter waits for a lock on the Go side.
type waiter chan grant

func startWaiter(t *testing.T, l locker) waiter {
	w := make(waiter, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		h, err := l.lock(ctx)
		w <- grant{h, time.Now(), err}
	}()
	return w
}

// granted waits until the waiter has the lock.
func (w waiter) granted(t *testing.T) grant {
	t.Helper()
	g := <-w
	if g.err != nil {
		t.Fatal(g.err)
	}
	return g
}

func give(t *testing.T, h hold) {
	t.Helper()
	if err := h.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

// isHeld expects that the lock can't be had now.
func isHeld(t *testing.T, l locker) {
	t.Helper()
	if h, err := l.try(t.Context()); !errors.Is(err, distlock.ErrHeld) {
		t.Errorf("taken with %v, %v; want ErrHeld", h, err)
	}
}
