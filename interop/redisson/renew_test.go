package redisson

import (
	"errors"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/interop"
)

// renewable are the kinds of locks that Java's watchdog renews too; one waits for each.
var renewable = mortals[:5]

// A lock that one side renews is not granted to the other until its release.
func TestLongRenewedLocksStay(t *testing.T) { renewedStay(t, single(t)) }

func renewedStay(t *testing.T, d *deployment) {
	j := jvms.Shared(t, 0)
	java, base := javaClient(t, j, d, shortLife), interop.NewName(t)
	c := interop.Client(t, d.url, &distlock.Options{TTL: shortLife})
	ends := time.Now().Add(2 * shortLife)
	var releases []func()
	for _, m := range renewable {
		releases = append(releases,
			javaRenews(t, m, m.name(base+"-java"), j.Thread("holds-"+m.held.Java), java, c),
			goRenews(t, m, m.name(base+"-go"), j.Thread("waits-"+m.held.Java), java, c))
	}
	time.Sleep(time.Until(ends)) // twice the life of locks without renewal
	for _, release := range releases {
		release()
	}
}

// javaRenews makes a Java thread hold a lock, and Go wait for it until it is released.
func javaRenews(t *testing.T, m mortal, name string, th *interop.Thread, java string, c *distlock.Client) (release func()) {
	held := th.Call(m.held.javaLock(java, name, 0)...).Wait(t)
	waiter := interop.Wait(t, m.wanted.Lock(c, name))
	return func() {
		called := interop.At(t, th.Call(m.held.javaUnlock(java, name, held)...).Wait(t))
		g := waiter.Granted(t)
		stayed(t, "java", m, called, g.At)
		interop.Give(t, g)
	}
}

// goRenews is the same with the roles exchanged.
func goRenews(t *testing.T, m mortal, name string, th *interop.Thread, java string, c *distlock.Client) (release func()) {
	h := interop.Take(t, m.held.Lock(c, name))
	waits := th.Call(m.wanted.javaLock(java, name, 0)...)
	return func() {
		called := time.Now()
		interop.Give(t, h)
		reply := waits.Wait(t)
		stayed(t, "go", m, called, interop.At(t, reply))
		th.Call(m.wanted.javaUnlock(java, name, reply)...).Wait(t)
	}
}

// stayed expects that a lock was not granted before its release, as it would be if no client had
// renewed it.
func stayed(t *testing.T, side string, m mortal, released, granted time.Time) {
	t.Helper()
	if granted.Before(released) {
		t.Errorf("%s held by %s was granted %v before its release", m.held.Java, side, released.Sub(granted))
	}
}

// A name is one kind of lock. The Go side refuses a name that Java uses for another kind.
func TestLongKindsAreToldApart(t *testing.T) {
	family := map[string]int{"lock": 1, "write": 2, "read": 2, "permit": 3}
	kinds := []kind{plain, write, read, permit(2)}
	for _, javas := range kinds {
		s := newFixture(t, single(t), javas, nil)
		held := s.javaLocks(t, s.th)
		for _, ours := range kinds {
			_, err := ours.Lock(s.c, s.name).Try(t.Context())
			if family[ours.Java] != family[javas.Java] && !errors.Is(err, distlock.ErrInvalid) {
				t.Errorf("%s of Java is %s for Go: %v", javas.Java, ours.Java, err)
			}
		}
		s.javaUnlocks(s.th, held).Wait(t)
	}
}
