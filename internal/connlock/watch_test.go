package connlock

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	lock "github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
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

// Waiters use a limited number of connections, and at most half of a limited pool.
func TestWaitersAreBounded(t *testing.T) {
	for limit, want := range map[int]int{0: maxWaiting, 7: 3} {
		bubble(t, func(t *testing.T) {
			b := newFake(t, &fakeServer{limit: limit})
			take(t, b, request("lock"))
			for range want {
				defer watch(t, b, request("lock")).Close()
			}
			if _, err := b.Watch(t.Context(), request("lock")); !errors.Is(err, lock.ErrSkip) {
				t.Errorf("limit %d: waiter %d: %v, want ErrSkip", limit, want+1, err)
			}
		})
	}
}

// Where a wait in the server would harm others, waiters poll, and an error is explained.
func TestWaitersThatPoll(t *testing.T) {
	bubble(t, func(t *testing.T) {
		unlucky := errors.New("unlucky")
		b := newFake(t, &fakeServer{confirm: unlucky, rowLocked: true}, func(c *Config) {
			c.Polling = true
			c.Explain = func(err error) error { return errors.Join(errors.New("it means"), err) }
		})
		expect.Be(t, expect.Err(b.Watch(t.Context(), request("lock"))), lock.ErrSkip, "watch")
		if _, err := b.Acquire(t.Context(), request("lock")); !errors.Is(err, unlucky) || !strings.Contains(err.Error(), "it means") || lock.Final(err) {
			t.Errorf("acquire: %v, want an explained error", err)
		}
	})
}
