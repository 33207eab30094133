package redisson

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/redis/go-redis/v9"
)

func TestFairTurns(t *testing.T)   { turnsAlone(t, single(t), party{fair, 2, 80}) }
func TestFairWakeUps(t *testing.T) { wakeUps(t, single(t), fair, 40) }

// line is how many stand in line for a lock.
func line(t *testing.T, d *deployment, name string) (n int64) {
	t.Helper()
	err := d.masters(t.Context(), func(ctx context.Context, c *redis.Client) error {
		more, err := c.LLen(ctx, "redisson_lock_queue:{"+name+"}").Result()
		n += more
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// stands returns when so many stand in line.
func (s *sides) stands(t *testing.T, want int64) {
	t.Helper()
	var got int64
	eventually(t, func() string { return fmt.Sprintf("%d stand in line, want %d", got, want) }, func() bool {
		got = line(t, s.d, s.name)
		return got == want
	})
}

// Java and Go stand in one line, and get in as they came.
func TestFairOrder(t *testing.T) {
	s := newSides(t, single(t), fair, nil)
	h := take(t, s.lock)
	var came []func() time.Time // when each got in
	for i := range 10 {
		if i%2 == 0 {
			came = append(came, s.javaPasses(t, fmt.Sprint("passes-", i)))
		} else {
			came = append(came, goPasses(t, s.lock))
		}
		s.stands(t, int64(i+1))
	}
	give(t, h)
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
func (s *sides) javaPasses(t *testing.T, thread string) func() time.Time {
	th := sharedJVM(t, 0).thread(thread)
	locks, unlocks := s.on(th, "lock", "0"), s.on(th, "unlock")
	return func() time.Time {
		unlocks.wait(t)
		return at(t, locks.wait(t))
	}
}

func goPasses(t *testing.T, l locker) func() time.Time {
	w := make(chan grant, 1)
	go func() {
		g := <-startWaiter(t, l)
		if g.err == nil {
			g.err = g.Unlock(t.Context())
		}
		w <- g
	}()
	return func() time.Time { return waiter(w).granted(t).at }
}

// A process of Java that died in line is dropped when Java's own time for it is over: the
// lock's TTL and how long it would have waited.
func TestFairJavaDiesInLine(t *testing.T) {
	s := newSides(t, single(t), fair, &distlock.Options{TTL: shortLife})
	h := take(t, s.lock)
	victim := startJVM(t)
	victim.thread("dies").call("try", victim.client(t, s.d, lease), "fair", s.name, millis(shortLife), millis(lease))
	s.stands(t, 1)
	victim.kill()
	s.getInBehindTheDead(t, h, 2*shortLife)
}

// A Go process that died in line is dropped when its TTL is over.
func TestFairGoDiesInLine(t *testing.T) {
	s := newSides(t, single(t), fair, &distlock.Options{TTL: shortLife})
	h := take(t, s.lock)
	child := startChild(t, s.d, "stands", s.name)
	s.stands(t, 1)
	child.Process.Kill()
	s.getInBehindTheDead(t, h, shortLife)
}

// getInBehindTheDead expects that Go and then Java get in behind the first in line, who
// is dead, after its time.
func (s *sides) getInBehindTheDead(t *testing.T, h hold, life time.Duration) {
	t.Helper()
	start := time.Now()
	ours := goPasses(t, s.lock)
	s.stands(t, 2)
	javas := s.javaPasses(t, "behind")
	s.stands(t, 3)
	give(t, h)
	first, second := ours(), javas()
	t.Logf("Go got in %v after the death, Java %v later", first.Sub(start), second.Sub(first))
	if first.Sub(start) > life+grace {
		t.Errorf("Go got in after %v, want %v", first.Sub(start), life)
	}
	if late := second.Sub(first); late < 0 || late > prompt {
		t.Errorf("Java got in %v after Go, want at once", late)
	}
	s.d.leaves(t, s.name, s.k.left(s.name)...)
}
