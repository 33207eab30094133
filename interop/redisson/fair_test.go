package redisson

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/interop"
	"github.com/redis/go-redis/v9"
)

func TestLongFairTurns(t *testing.T)   { turnsAlone(t, single(t), fair, 2, 80) }
func TestLongFairWakeUps(t *testing.T) { wakeUps(t, single(t), fair, 40) }

// line returns how many clients are queued for a lock.
func line(t *testing.T, d *deployment, name string) (n int64) {
	t.Helper()
	must.OK(t, d.masters(t.Context(), func(ctx context.Context, c *redis.Client) error {
		more, err := c.LLen(ctx, "redisson_lock_queue:{"+name+"}").Result()
		n += more
		return err
	}))
	return n
}

// awaitQueued returns once want clients are queued.
func (f *fixture) awaitQueued(t *testing.T, want int64) {
	t.Helper()
	var got int64
	interop.Eventually(t, func() string { return fmt.Sprintf("%d are queued, want %d", got, want) }, func() bool {
		got = line(t, f.d, f.name)
		return got == want
	})
}

// Java and Go share one queue and get the lock in its order.
func TestLongFairOrder(t *testing.T) {
	s := newFixture(t, single(t), fair, nil)
	h := interop.Take(t, s.lock)
	var came []func() time.Time // when each got in
	for i := range 10 {
		if i%2 == 0 {
			came = append(came, s.javaPasses(t, fmt.Sprint("passes-", i)))
		} else {
			passes := interop.Pass(t, s.lock)
			came = append(came, func() time.Time { return passes.Granted(t).At })
		}
		s.awaitQueued(t, int64(i+1))
	}
	interop.Give(t, h)
	var times []time.Time
	for _, at := range came {
		times = append(times, at())
	}
	if !slices.IsSortedFunc(times, time.Time.Compare) {
		t.Errorf("they got in at %v", times)
	}
	s.d.leaves(t, s.name, s.k.left(s.name)...)
}

// javaPasses makes a Java thread wait for the lock and release it at once.
func (f *fixture) javaPasses(t *testing.T, thread string) func() time.Time {
	th := jvms.Shared(t, 0).Thread(thread)
	locks, unlocks := f.on(th, "lock", "0"), f.on(th, "unlock")
	return func() time.Time {
		unlocks.Wait(t)
		return interop.At(t, locks.Wait(t))
	}
}

// A Java process that died in the queue is dropped when Java's own time for it is over: the lock's
// TTL plus the time that it would have waited.
func TestLongFairJavaDiesInTheQueue(t *testing.T) {
	s := newFixture(t, single(t), fair, &distlock.Options{TTL: shortLife})
	h := interop.Take(t, s.lock)
	victim := jvms.Start(t)
	victim.Thread("dies").Call("try", javaClient(t, victim, s.d, lease), "fair", s.name, interop.Millis(shortLife), interop.Millis(lease))
	s.awaitQueued(t, 1)
	victim.Kill()
	s.getInBehindTheDead(t, h, 2*shortLife)
}

// A Go process that died in the queue is dropped when its TTL is over.
func TestLongFairGoDiesInTheQueue(t *testing.T) {
	s := newFixture(t, single(t), fair, &distlock.Options{TTL: shortLife})
	h := interop.Take(t, s.lock)
	child := interop.StartChild(t, s.d.url, "waits", s.name)
	s.awaitQueued(t, 1)
	child.Process.Kill()
	s.getInBehindTheDead(t, h, shortLife)
}

// getInBehindTheDead expects that Go and then Java get the lock once the time of the dead first
// waiter is over.
func (f *fixture) getInBehindTheDead(t *testing.T, h interop.Hold, life time.Duration) {
	t.Helper()
	start := time.Now()
	ours := interop.Pass(t, f.lock)
	f.awaitQueued(t, 2)
	javas := f.javaPasses(t, "behind")
	f.awaitQueued(t, 3)
	interop.Give(t, h)
	first, second := ours.Granted(t).At, javas()
	t.Logf("Go got in %v after the death, Java %v later", first.Sub(start), second.Sub(first))
	if first.Sub(start) > life+grace {
		t.Errorf("Go got in after %v, want %v", first.Sub(start), life)
	}
	if late := second.Sub(first); late < 0 || late > interop.Prompt {
		t.Errorf("Java got in %v after Go, want at once", late)
	}
	f.d.leaves(t, f.name, f.k.left(f.name)...)
}
