package connlock

import (
	"testing"
	"testing/synctest"
	"time"

	lock "github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/must"
)

func watch(t *testing.T, b *Backend, r lock.Request) lock.Watch {
	t.Helper()
	w := must.Get(b.Watch(t.Context(), r))(t)
	return w
}

// A wait takes the lock when it becomes free, even after several slices. A later Acquire is granted at
// once.
func TestWaitTakesTheLock(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newFake(t, &fakeServer{})
		mine, theirs := request("lock"), request("lock")
		take(t, b, mine)
		w := watch(t, b, theirs)
		defer w.Close()
		time.Sleep(waitSlice * 5 / 2)
		select {
		case <-w.Ready:
			t.Fatal("ready while the lock is held")
		default:
		}
		release(t, b, mine)
		<-w.Ready
		wantHeld(t, b, request("lock"))
		take(t, b, theirs)
		release(t, b, theirs)
	})
}

// A wait that is given up keeps nothing, and its connection is killed.
func TestWaitThatIsGivenUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := &fakeServer{}
		b := newFake(t, f)
		mine := request("lock")
		take(t, b, mine)
		w := watch(t, b, request("lock"))
		synctest.Wait()
		w.Close()
		if n := f.get(&f.kills); n != 1 {
			t.Errorf("%d connections were killed, want 1", n)
		}
		release(t, b, mine)
		take(t, b, request("lock"))
	})
}

// Close kills the connection of a wait: the server may not have noticed that the client has gone, and would grant it the lock.
func TestWaitOfAClosedBackend(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := &fakeServer{}
		b := newFake(t, f)
		take(t, newFake(t, f), request("lock"))
		w := watch(t, b, request("lock"))
		synctest.Wait()
		must.OK(t, b.Close(), "close")
		if n := f.get(&f.kills); n != 1 {
			t.Errorf("%d connections were killed, want 1", n)
		}
		w.Close()
	})
}

// A waiter whose connection ends is signalled, and waits on another one.
func TestWaitThatIsCut(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := &fakeServer{}
		b, rival := newFake(t, f), newFake(t, f)
		mine, theirs := request("lock"), request("lock")
		take(t, rival, theirs)
		w := watch(t, b, mine)
		defer w.Close()
		synctest.Wait()
		f.set(func() { f.cut = true })
		<-w.Ready
		f.set(func() { f.cut = false })
		wantHeld(t, b, mine)
		time.Sleep(time.Second)
		release(t, rival, theirs)
		<-w.Ready
		wantHeld(t, rival, request("lock"))
		take(t, b, mine)
	})
}

// A waiter for which a limited pool has no connection waits until there is one.
func TestWaitWithoutAConnection(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newFake(t, &fakeServer{limit: 3})
		lock, other := request("lock"), request("other")
		take(t, b, lock)
		take(t, b, other)
		next := request("lock")
		w := watch(t, b, next)
		defer w.Close()
		time.Sleep(time.Second)
		release(t, b, other)
		time.Sleep(time.Second)
		release(t, b, lock)
		<-w.Ready
		take(t, b, next)
	})
}
