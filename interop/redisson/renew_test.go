package redisson

import (
	"errors"
	"testing"
	"time"

	"github.com/distlock/distlock"
)

// renewable are the kinds of locks that Java's watchdog renews too; one waits for each.
var renewable = mortals[:5]

// What one side renews the other does not get, and then at once.
func TestRenewedLocksStay(t *testing.T) { renewedStay(t, single(t)) }

func renewedStay(t *testing.T, d *deployment) {
	j := sharedJVM(t, 0)
	java, base := j.client(t, d, shortLife), newName(t)
	c := d.client(t, &distlock.Options{TTL: shortLife})
	ends := time.Now().Add(2 * shortLife)
	var releases []func()
	for _, m := range renewable {
		releases = append(releases,
			javaRenews(t, m, m.name(base+"-java"), j.thread("holds-"+m.held.java), java, c, ends),
			goRenews(t, m, m.name(base+"-go"), j.thread("waits-"+m.held.java), java, c, ends))
	}
	time.Sleep(time.Until(ends)) // twice the life of locks that nobody renews
	for _, release := range releases {
		release()
	}
}

// javaRenews makes a Java thread hold a lock, and Go wait for it until it is released.
func javaRenews(t *testing.T, m mortal, name string, th *thread, java string, c *distlock.Client, ends time.Time) (release func()) {
	held := th.call(m.held.javaLock(java, name, 0)...).wait(t)
	waiter := startWaiter(t, m.wanted.lock(c, name))
	return func() {
		th.call(m.held.javaUnlock(java, name, held)...).wait(t)
		g := waiter.granted(t)
		stayed(t, "java", m, g.at.Sub(ends))
		give(t, g)
	}
}

// goRenews is the same with the roles exchanged.
func goRenews(t *testing.T, m mortal, name string, th *thread, java string, c *distlock.Client, ends time.Time) (release func()) {
	h := take(t, m.held.lock(c, name))
	waits := th.call(m.wanted.javaLock(java, name, 0)...)
	return func() {
		give(t, h)
		reply := waits.wait(t)
		stayed(t, "go", m, at(t, reply).Sub(ends))
		th.call(m.wanted.javaUnlock(java, name, reply)...).wait(t)
	}
}

func stayed(t *testing.T, side string, m mortal, late time.Duration) {
	t.Helper()
	if late < 0 || late > prompt {
		t.Errorf("%s held by %s was granted %v after its release", m.held.java, side, late)
	}
}

// A name is one kind of lock: what Java has made of it the Go side does not take for
// another kind, and says so.
func TestKindsAreToldApart(t *testing.T) {
	family := map[string]int{"lock": 1, "write": 2, "read": 2, "permit": 3}
	kinds := []kind{plain, write, read, permit(2)}
	for _, javas := range kinds {
		s := newSides(t, single(t), javas, nil)
		held := s.javaLocks(t, s.th)
		for _, ours := range kinds {
			_, err := ours.lock(s.c, s.name).try(t.Context())
			if family[ours.java] != family[javas.java] && !errors.Is(err, distlock.ErrInvalid) {
				t.Errorf("%s of Java is %s for Go: %v", javas.java, ours.java, err)
			}
		}
		s.javaUnlocks(s.th, held).wait(t)
	}
}
