package redisson

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock"
)

// forcible are the kinds of locks that Java can unlock by force.
var forcible = []kind{plain, fenced, fair, write, read}

// sides are both sides of a test of one lock.
type sides struct {
	d         *deployment
	k         kind
	name      string
	java      string // Java's client
	th, other *thread
	c         *distlock.Client
	lock      locker
}

func newSides(t *testing.T, d *deployment, k kind, opts *distlock.Options) *sides {
	t.Helper()
	return sidesOf(t, d, k, newName(t), d.client(t, opts))
}

func sidesOf(t *testing.T, d *deployment, k kind, name string, c *distlock.Client) *sides {
	t.Helper()
	j := sharedJVM(t, 0)
	s := &sides{d: d, k: k, name: name, java: j.client(t, d, lease), th: j.thread("one"), other: j.thread("two"), c: c, lock: k.lock(c, name)}
	k.prepare(t, s.th, s.java, name)
	return s
}

// on is a call on the lock by Java.
func (s *sides) on(th *thread, command string, args ...string) *call {
	return th.call(append([]string{command, s.java, s.k.java, s.name}, args...)...)
}

// javaLocks locks, and returns the answer for javaUnlock.
func (s *sides) javaLocks(t *testing.T, th *thread) []string {
	t.Helper()
	return th.call(s.k.javaLock(s.java, s.name, lease)...).wait(t)
}

func (s *sides) javaUnlocks(th *thread, held []string) *call {
	return th.call(s.k.javaUnlock(s.java, s.name, held)...)
}

// What Java unlocks by force is lost for the Go side, which learns it at its next
// renewal and does not touch what the lock's next holder has.
func TestJavaForces(t *testing.T) {
	for _, k := range forcible {
		t.Run(k.java, func(t *testing.T) { javaForces(t, single(t), k) })
	}
}

func javaForces(t *testing.T, d *deployment, k kind) {
	s := newSides(t, d, k, &distlock.Options{TTL: shortLife})
	h := take(t, s.lock)
	s.on(s.th, "force").says(t, "true")
	s.on(s.th, "force").says(t, "false")
	held := s.javaLocks(t, s.th)
	learnsLoss(t, h)
	s.on(s.th, "mine").says(t, "true")
	s.javaUnlocks(s.th, held).wait(t)
	d.leaves(t, s.name, k.left(s.name)...)
}

// learnsLoss expects that a lease ends in time, and is not unlocked.
func learnsLoss(t *testing.T, h hold) {
	t.Helper()
	start := time.Now()
	select {
	case <-h.Context().Done():
		t.Logf("noticed after %v of TTL %v", since(start), shortLife)
	case <-time.After(patience):
		t.Fatal("the lease's context does not end")
	}
	if cause := context.Cause(h.Context()); !errors.Is(cause, distlock.ErrLost) {
		t.Errorf("the lease ended by %v", cause)
	}
	if took := time.Since(start); took > shortLife {
		t.Errorf("noticed after %v, want less than %v", took, shortLife)
	}
	if err := h.Unlock(t.Context()); !errors.Is(err, distlock.ErrLost) {
		t.Errorf("unlock: %v", err)
	}
}

// Java gives back a permit by its id, which is the Go side's Owner.
func TestJavaReleasesGoPermit(t *testing.T) {
	s := newSides(t, single(t), permit(1), &distlock.Options{TTL: shortLife})
	h := take(t, s.lock)
	id := strings.ReplaceAll(h.(*distlock.Lease).Owner(), "-", "")
	s.th.call("release", s.java, s.name, id).wait(t)
	held := s.javaLocks(t, s.th)
	learnsLoss(t, h)
	isHeld(t, s.lock)
	s.javaUnlocks(s.th, held).wait(t)
	s.d.leaves(t, s.name, s.k.left(s.name)...)
}

// What the Go side breaks passes at once to who waits, and Java can't unlock it again.
func TestGoBreaks(t *testing.T) {
	for _, k := range append(forcible, permit(1)) {
		t.Run(k.java, func(t *testing.T) { goBreaks(t, single(t), k) })
	}
}

func goBreaks(t *testing.T, d *deployment, k kind) {
	s := newSides(t, d, k, nil)
	held := s.javaLocks(t, s.th)
	info, err := s.c.Inspect(t.Context(), s.name)
	if err != nil || len(info.Holders) != 1 {
		t.Fatalf("inspect: %+v, %v", info, err)
	}
	if err := s.c.Break(t.Context(), info); err != nil {
		t.Fatal(err)
	}
	h := take(t, s.lock)
	s.javaUnlocks(s.th, held).refused(t, "Illegal") // MonitorState, or Argument for a permit
	if err := s.c.Break(t.Context(), info); !errors.Is(err, distlock.ErrLost) {
		t.Errorf("broken again: %v", err)
	}
	if k.sharing != "reading" {
		isHeld(t, s.lock)
	}
	give(t, h)
	d.leaves(t, s.name, k.left(s.name)...)
}

// Neither side unlocks what the other holds, and each sees who does.
func TestForeignLocksStay(t *testing.T) {
	for _, k := range forcible {
		t.Run(k.java, func(t *testing.T) { foreignStays(t, single(t), k) })
	}
}

func foreignStays(t *testing.T, d *deployment, k kind) {
	s := newSides(t, d, k, nil)
	h := take(t, s.lock)
	s.on(s.th, "unlock").refused(t, "IllegalMonitorStateException")
	s.on(s.th, "mine").says(t, "false")
	s.on(s.th, "locked").says(t, "true")
	give(t, h)
	s.on(s.th, "locked").says(t, "false")

	// Java's hold counts twice, and is there until it was unlocked twice.
	writer := write.lock(s.c, s.name)
	if k.sharing == "alone" && k.java != "write" {
		writer = s.lock
	}
	held := s.javaLocks(t, s.th)
	s.javaLocks(t, s.th)
	s.javaUnlocks(s.other, held).refused(t, "IllegalMonitorStateException")
	isHeld(t, writer)
	s.javaUnlocks(s.th, held).wait(t)
	isHeld(t, writer)
	s.javaUnlocks(s.th, held).wait(t)
	give(t, take(t, writer))
	d.leaves(t, s.name, k.left(s.name)...)
}
