package redisson

import (
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/interop"
)

// forcible are the kinds of locks that Java can unlock by force.
var forcible = []kind{plain, fenced, fair, write, read}

// fixture has both sides of a test of one lock.
type fixture struct {
	d         *deployment
	k         kind
	name      string
	java      string // Java's client
	th, other *interop.Thread
	c         *distlock.Client
	lock      interop.Locker
}

func newFixture(t *testing.T, d *deployment, k kind, opts *distlock.Options) *fixture {
	t.Helper()
	return fixtureOf(t, d, k, interop.NewName(t), interop.Client(t, d.url, opts))
}

func fixtureOf(t *testing.T, d *deployment, k kind, name string, c *distlock.Client) *fixture {
	t.Helper()
	j := jvms.Shared(t, 0)
	s := &fixture{d: d, k: k, name: name, java: javaClient(t, j, d, lease), th: j.Thread("one"), other: j.Thread("two"), c: c, lock: k.Lock(c, name)}
	k.prepare(t, s.th, s.java, name)
	return s
}

// on is a call on the lock by Java.
func (f *fixture) on(th *interop.Thread, command string, args ...string) *interop.Call {
	return th.Call(append([]string{command, f.java, f.k.Java, f.name}, args...)...)
}

// javaLocks locks, and returns the answer for javaUnlock.
func (f *fixture) javaLocks(t *testing.T, th *interop.Thread) []string {
	t.Helper()
	return th.Call(f.k.javaLock(f.java, f.name, lease)...).Wait(t)
}

func (f *fixture) javaUnlocks(th *interop.Thread, held []string) *interop.Call {
	return th.Call(f.k.javaUnlock(f.java, f.name, held)...)
}

// forcedLife is the TTL of locks that the other side breaks. The holder notices after a third of it
// at the latest.
const forcedLife = 6 * time.Second

// A lock that Java unlocks by force is lost for the Go side. It notices at its next renewal, and
// does not touch the next holder's lock.
func TestLongJavaForces(t *testing.T) {
	for _, k := range forcible {
		t.Run(k.Java, func(t *testing.T) { javaForces(t, single(t), k) })
	}
}

func javaForces(t *testing.T, d *deployment, k kind) {
	s := newFixture(t, d, k, &distlock.Options{TTL: forcedLife})
	h := interop.Take(t, s.lock)
	s.on(s.th, "force").Says(t, "true")
	s.on(s.th, "force").Says(t, "false")
	held := s.javaLocks(t, s.th)
	interop.LearnsLoss(t, h, forcedLife)
	s.on(s.th, "mine").Says(t, "true")
	s.javaUnlocks(s.th, held).Wait(t)
	d.leaves(t, s.name, k.left(s.name)...)
}

// Java gives back a permit by its id, which is the Go side's Owner.
func TestLongJavaReleasesGoPermit(t *testing.T) {
	s := newFixture(t, single(t), permit(1), &distlock.Options{TTL: forcedLife})
	h := interop.Take(t, s.lock)
	id := strings.ReplaceAll(h.(*distlock.Lease).Owner(), "-", "")
	s.th.Call("release", s.java, s.name, id).Wait(t)
	held := s.javaLocks(t, s.th)
	interop.LearnsLoss(t, h, forcedLife)
	interop.IsHeld(t, s.lock)
	s.javaUnlocks(s.th, held).Wait(t)
	s.d.leaves(t, s.name, s.k.left(s.name)...)
}

// A lock that the Go side releases by force is granted at once to a waiter, and Java can't unlock it again.
func TestLongGoBreaks(t *testing.T) {
	for _, k := range append(forcible, permit(1)) {
		t.Run(k.Java, func(t *testing.T) { goBreaks(t, single(t), k) })
	}
}

func goBreaks(t *testing.T, d *deployment, k kind) {
	s := newFixture(t, d, k, nil)
	held := s.javaLocks(t, s.th)
	info, err := s.c.Inspect(t.Context(), s.name)
	if err != nil || len(info.Holders) != 1 {
		t.Fatalf("inspect: %+v, %v", info, err)
	}
	must.OK(t, s.c.ForceUnlock(t.Context(), info))
	h := interop.Take(t, s.lock)
	s.javaUnlocks(s.th, held).Refused(t, "Illegal") // MonitorState, or Argument for a permit
	expect.Be(t, s.c.ForceUnlock(t.Context(), info), distlock.ErrLost, "broken again")
	if k.Sharing != "reading" {
		interop.IsHeld(t, s.lock)
	}
	interop.Give(t, h)
	d.leaves(t, s.name, k.left(s.name)...)
}

// Neither side unlocks the other's lock, and each sees the holder.
func TestLongForeignLocksStay(t *testing.T) {
	for _, k := range forcible {
		t.Run(k.Java, func(t *testing.T) { foreignStays(t, single(t), k) })
	}
}

func foreignStays(t *testing.T, d *deployment, k kind) {
	s := newFixture(t, d, k, nil)
	h := interop.Take(t, s.lock)
	s.on(s.th, "unlock").Refused(t, "IllegalMonitorStateException")
	s.on(s.th, "mine").Says(t, "false")
	s.on(s.th, "locked").Says(t, "true")
	interop.Give(t, h)
	s.on(s.th, "locked").Says(t, "false")

	// Java's hold counts twice, and is there until it was unlocked twice.
	writer := write.Lock(s.c, s.name)
	if k.Sharing == "alone" && k.Java != "write" {
		writer = s.lock
	}
	held := s.javaLocks(t, s.th)
	s.javaLocks(t, s.th)
	s.javaUnlocks(s.other, held).Refused(t, "IllegalMonitorStateException")
	interop.IsHeld(t, writer)
	s.javaUnlocks(s.th, held).Wait(t)
	interop.IsHeld(t, writer)
	s.javaUnlocks(s.th, held).Wait(t)
	interop.Give(t, interop.Take(t, writer))
	d.leaves(t, s.name, k.left(s.name)...)
}
