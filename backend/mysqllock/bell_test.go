package mysqllock

import (
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/sqlrow"
)

// handOver lets a lock go back and forth between two backends, each of which waits while
// the other holds, and measures from the release to the next grant.
func handOver(t testing.TB, a, b driver.Backend, name string, times int, held time.Duration) []time.Duration {
	t.Helper()
	took := make([]time.Duration, 0, times)
	holder, waiter := a, b
	r := asks(name, driver.Exclusive)
	take(t, holder, r)
	for range times {
		next := asks(r.Name, r.Mode)
		refused(t, waiter, next)
		w, err := waiter.(driver.Watcher).Watch(t.Context(), next)
		if err != nil {
			t.Fatal(err)
		}
		refused(t, waiter, next)
		time.Sleep(held)
		drain(w)
		start := time.Now()
		gives(t, holder, r)
		for {
			select {
			case <-w.Ready:
			case <-time.After(patient):
				t.Fatal("the release was not signalled")
			}
			if _, err := waiter.Acquire(t.Context(), next); err == nil {
				break
			}
		}
		took = append(took, time.Since(start))
		w.Close()
		holder, waiter, r = waiter, holder, next
	}
	gives(t, holder, r)
	slices.Sort(took)
	return took
}

func drain(w driver.Watch) {
	select {
	case <-w.Ready:
	default:
	}
}

// addressOf is a backend's bell when it is ready.
func bellOf(t testing.TB, b *Backend) *bell {
	t.Helper()
	hasBell(t, b)
	return b.strategy.(*row).dialect.bell
}

// A release is heard if somebody listens, and only then is it rung.
func TestBellHandsOver(t *testing.T) {
	t.Parallel()
	u, _ := database(t, Row)
	a, b := rowAt(t, u), rowAt(t, u)
	name := "hand-over"
	slot := slotOf(sqlrow.KeyOf(name))
	rung := func() (n int64) {
		for _, backend := range []*Backend{a, b} {
			r := &bellOf(t, backend).ringer
			r.mu.Lock()
			n += r.numbers[slot]
			r.mu.Unlock()
		}
		return n
	}
	for range 10 {
		r := asks(name, driver.Exclusive)
		take(t, a, r)
		gives(t, a, r)
	}
	if n := rung(); n != 0 {
		t.Errorf("%d rings for nobody", n)
	}
	took := handOver(t, a, b, name, 20, 20*time.Millisecond)
	t.Logf("from a release to the next grant: p50 %v, longest %v", took[10], took[19])
	if n := rung(); n < 10 {
		t.Errorf("of 20 releases that somebody waited for %d were rung", n)
	}
}

var someKey = sqlrow.KeyOf("some")

// hears listens in the background.
func hears(t *testing.T, e sqlrow.Listener, tag string) <-chan string {
	t.Helper()
	result := make(chan string, 1)
	go func() {
		rang, silent := e.Wait(t.Context(), tag)
		result <- map[[2]bool]string{{true, false}: "rang", {false, true}: "silent", {false, false}: "nothing"}[[2]bool{rang, silent}]
	}()
	return result
}

// listening waits until somebody waits for the bell.
func listening(t *testing.T, db *sql.DB) {
	t.Helper()
	until(t, "somebody listens", func() bool {
		return ask(t, db, "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE = 'User lock' AND DB = DATABASE()") > 0
	})
}

// Each ring is heard once: by who listens, and by who comes too late for it.
func TestBellIsHeard(t *testing.T) {
	t.Parallel()
	u, db := database(t, Row)
	ringer, waiter := bellOf(t, rowAt(t, u)), bellOf(t, rowAt(t, u))
	ear := waiter.Listen(someKey)
	defer ear.Close()
	tag := ringer.Address(someKey)
	for range 3 {
		got := hears(t, ear, tag) // the row may name the old lock for long
		listening(t, db)
		ringer.Notify(someKey)
		if r := <-got; r != "rang" {
			t.Fatalf("after a ring: %s", r)
		}
	}
	until(t, "the last ring is over", func() bool { return strings.HasSuffix(ringer.Address(someKey), "/3") })
	late := waiter.Listen(someKey)
	defer late.Close()
	if r := <-hears(t, late, tag); r != "rang" {
		t.Errorf("after three rings that were missed: %s", r)
	}
	got := hears(t, late, tag)
	listening(t, db)
	select {
	case r := <-got:
		t.Errorf("what was heard is heard again: %s", r)
	default:
	}
	ringer.Notify(someKey)
	if r := <-got; r != "rang" {
		t.Errorf("after another ring: %s", r)
	}
}

// Without a ringer there is nothing to hear, and nobody waits for it.
func TestBellOfTheDead(t *testing.T) {
	t.Parallel()
	u, db := database(t, Row)
	ringer, waiter := bellOf(t, rowAt(t, u)), bellOf(t, rowAt(t, u))
	ear := waiter.Listen(someKey)
	defer ear.Close()
	const id = "distlock/0123456789abcdef/"
	for _, tag := range []string{
		"", "x", "distlock/", id, id + "1", id + "1/x", id + "1/-3", id + "x'/3", "x" + id + "1/2", id + "1/2\n", id + "1/9999999999999999", id + "1/2",
	} {
		if r := <-hears(t, ear, tag); r != "silent" {
			t.Errorf("%q: %s", tag, r)
		}
	}
	tag := ringer.Address(someKey)
	got := hears(t, ear, tag)
	listening(t, db)
	do(t, db, fmt.Sprint("KILL ", ask(t, db, "SELECT IS_USED_LOCK('"+tag+"')")))
	if r := <-got; r != "rang" {
		t.Errorf("when the ringer dies: %s; want it to ring", r)
	}
	if r := <-hears(t, ear, tag); r != "silent" {
		t.Errorf("when it is dead: %s", r)
	}
	until(t, "there is another", func() bool {
		ringer.Notify(someKey) // by which it notices
		next := ringer.Address(someKey)
		return next != "" && !strings.HasPrefix(next, tag[:20])
	})
}

// However many wait, few connections do.
func TestBellTakesFewConnections(t *testing.T) {
	t.Parallel()
	u, db := database(t, Row)
	holder := rowAt(t, u)
	bellOf(t, holder)
	pool := rowPool(t, u, nil)
	waiter := rowOn(t, pool)
	bellOf(t, waiter)
	var closes []func()
	wait := func(name string) {
		w, err := waiter.Watch(t.Context(), asks(name, driver.Exclusive))
		if err != nil {
			t.Fatal(err)
		}
		closes = append(closes, w.Close)
	}
	for i := range 20 {
		take(t, holder, asks(fmt.Sprint("lock ", i), driver.Exclusive))
	}
	for range 200 {
		wait("lock 0")
	}
	listening(t, db)
	inUse := func() int { pins.Lock(); defer pins.Unlock(); return pins.of[pool] }
	if n := inUse(); n != 2 {
		t.Errorf("200 waiters for one lock keep %d connections; want a ringer and an ear", n)
	}
	for i := range 20 {
		wait(fmt.Sprint("lock ", i))
	}
	until(t, "all ears listen", func() bool { return inUse() == 1+maxEars })
	for range 50 {
		if n := inUse(); n > 1+maxEars {
			t.Fatalf("waiters for 20 locks keep %d connections", n)
		}
		time.Sleep(time.Millisecond)
	}
	for _, f := range closes {
		f()
	}
}

// Close leaves nothing behind: no goroutine, and no session with locks of the bell.
func TestBellEndsWithClose(t *testing.T) {
	u, db := database(t, Row)
	before := runtime.NumGoroutine()
	holder := rowAt(t, u)
	bellOf(t, holder)
	pool := rowPool(t, u, nil)
	waiter := rowOn(t, pool)
	tag := bellOf(t, waiter).Address(someKey)
	r := asks("x", driver.Exclusive)
	take(t, holder, r)
	if _, err := waiter.Watch(t.Context(), asks("x", driver.Exclusive)); err != nil {
		t.Fatal(err)
	}
	listening(t, db)
	if err := errors.Join(waiter.Close(), holder.Close()); err != nil {
		t.Fatal(err)
	}
	if n := pool.Stats().InUse; n != 0 {
		t.Errorf("%d connections are in use after Close", n)
	}
	if err := pool.PingContext(t.Context()); err != nil {
		t.Errorf("the caller's pool: %v", err)
	}
	until(t, "the server has ended the sessions", func() bool {
		return ask(t, db, "SELECT IS_FREE_LOCK('"+tag+"')") == 1 &&
			ask(t, db, "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE = 'User lock' AND DB = DATABASE()") == 0
	})
	pool.Close()
	until(t, "goroutines have ended", func() bool { return runtime.NumGoroutine() <= before+8 })
}
