package connlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	lock "github.com/distlock/distlock/driver"
)

// Holds of similar TTLs share a connection, namely one that has probed.
func TestHoldsShareAConnection(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := &fakeServer{}
		b := newFake(t, f)
		for i := range 100 {
			r := request(fmt.Sprint("lock ", i))
			r.TTL += time.Duration(i) * time.Microsecond
			if i == 0 {
				r.TTL -= time.Microsecond
			}
			take(t, b, r)
		}
		if n := f.get(&f.opened); n != 2 {
			t.Errorf("%d connections for 100 holds, want the 2 that have probed", n)
		}
	})
}

func TestLeaseClasses(t *testing.T) {
	for ttl, want := range map[time.Duration]time.Duration{
		time.Millisecond:          time.Second,
		time.Second:               time.Second,
		1001 * time.Millisecond:   1100 * time.Millisecond,
		30 * time.Second:          30 * time.Second,
		time.Minute + time.Second: 61 * time.Second,
		100*time.Second + 1:       110 * time.Second,
		48 * time.Hour:            87_000 * time.Second,
	} {
		if got := leaseClass(ttl); got != want {
			t.Errorf("%v: %v, want %v", ttl, got, want)
		}
	}
}

// With one lock per connection, all but one of the connections of a limited pool can have locks.
func TestLimitOfThePool(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newFake(t, &fakeServer{limit: 3}, onePerConn)
		first := request("a")
		take(t, b, first)
		take(t, b, request("b"))
		_, err := b.Acquire(t.Context(), request("c"))
		if err == nil || lock.Final(err) || errors.Is(err, lock.ErrHeld) || !strings.Contains(err.Error(), "limit of 3") {
			t.Errorf("%v, want an error that names the limit", err)
		}
		if err := b.DB.PingContext(t.Context()); err != nil {
			t.Error(err)
		}
		release(t, b, first)
		take(t, b, request("c"))
	})
}

func TestPoolsThatAreTooSmall(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := &fakeServer{limit: 2}
		if _, err := New(t.Context(), Config{DB: f.pool(t), Dialect: f}); !errors.Is(err, lock.ErrInvalid) {
			t.Errorf("%v, want ErrInvalid", err)
		}
	})
}

// If the pool is exhausted, a release of another process's hold closes an idle connection.
func TestIdleConnectionsMakeRoom(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newFake(t, &fakeServer{limit: 3})
		mine := request("mine")
		take(t, b, mine)
		others, err := b.DB.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer others.Close()
		if n := b.DB.Stats().InUse; n != 3 {
			t.Fatalf("%d connections are in use, want 3", n)
		}
		if err := b.Release(t.Context(), request("theirs").Hold); !errors.Is(err, lock.ErrLost) {
			t.Errorf("%v, want ErrLost", err)
		}
		synctest.Wait()
		if n := b.DB.Stats().InUse; n != 2 {
			t.Errorf("%d connections are in use, want 2", n)
		}
	})
}

// An idle connection that has fallen silent delays a call for little more than a moment, however long its lease is.
func TestSilentIdleConnection(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := &fakeServer{}
		b := newFake(t, f)
		r := request("lock")
		r.TTL = time.Hour
		take(t, b, r)
		release(t, b, r)
		f.set(func() { f.silent = true })
		start := time.Now()
		take(t, b, request("lock"))
		if took := time.Since(start); took > 2*cleanupTime*minPool {
			t.Errorf("it took %v", took)
		}
	})
}

// An attempt on a connection without holds ends with its caller, so that the next one finds another connection.
func TestSilentConnectionWithoutHolds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := &fakeServer{}
		b := newFake(t, f)
		r := request("lock")
		take(t, b, r)
		silent := b.holdOf(r.Hold).conn.conn.ID()
		release(t, b, r)
		f.set(func() { f.silentConn = silent })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := b.Acquire(ctx, request("lock")); err == nil {
			t.Fatal("a silent connection has granted")
		}
		start := time.Now()
		take(t, b, request("lock"))
		if took := time.Since(start); took > 2*cleanupTime {
			t.Errorf("it took %v", took)
		}
	})
}

// A caller that gives up on such a connection costs the others no attempt.
func TestOthersOnALostConnection(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := &fakeServer{limit: 3} // one for others, and one that has probed: both attempts share the last one
		b := newFake(t, f)
		r := request("first")
		take(t, b, r)
		f.set(func() { f.silentConn = b.holdOf(r.Hold).conn.conn.ID() })
		release(t, b, r)
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error, 1)
		go func() {
			_, err := b.Acquire(ctx, request("silent"))
			failed <- err
		}()
		synctest.Wait()
		others := make(chan error, 5)
		for i := range cap(others) {
			go func() {
				_, err := b.Acquire(t.Context(), request(fmt.Sprint(i)))
				others <- err
			}()
		}
		synctest.Wait()
		cancel()
		if err := <-failed; err == nil {
			t.Error("a silent connection has granted")
		}
		for range cap(others) {
			if err := <-others; err != nil {
				t.Errorf("another name: %v", err)
			}
		}
	})
}

// Locks that were all extended share connections, too.
func TestManyExtendedHolds(t *testing.T) {
	for limit, most := range map[int]int{0: maxShared, 4: 3} {
		bubble(t, func(t *testing.T) {
			b := newFake(t, &fakeServer{limit: limit})
			for i := range 50 {
				r := request(fmt.Sprint(i))
				take(t, b, r)
				r.TTL = time.Hour
				if err := b.Renew(t.Context(), []lock.Hold{r.Hold})[0]; err != nil {
					t.Fatal(err)
				}
			}
			used := map[*lockConn]bool{}
			for _, h := range b.byOwner {
				used[h.conn] = true
			}
			if len(used) > most {
				t.Errorf("limit %d: 50 extended locks use %d connections", limit, len(used))
			}
		})
	}
}

// An Extend that fails before it is sent changes nothing for the other holds.
func TestExtendThatIsNotSent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := &fakeServer{}
		b := newFake(t, f)
		r := request("lock")
		take(t, b, r)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		long := r.Hold
		long.TTL = time.Hour
		if err := b.Renew(ctx, []lock.Hold{long})[0]; err == nil {
			t.Fatal("renewed without a context")
		}
		if err := b.Renew(t.Context(), []lock.Hold{r.Hold})[0]; err != nil || f.lease == time.Hour {
			t.Errorf("a lease of %v, %v", f.lease, err)
		}
	})
}

// A long Extend of one hold prolongs the life of the others on its connection no longer than it must, and no others join.
func TestExtendEndsWithItsHold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := &fakeServer{}
		b := newFake(t, f)
		extended, other, later := request("extended"), request("other"), request("later")
		take(t, b, extended)
		take(t, b, other)
		conn := b.holdOf(other.Hold).conn
		renew := func(r lock.Request, ttl time.Duration) {
			t.Helper()
			r.TTL = ttl
			if err := b.Renew(t.Context(), []lock.Hold{r.Hold})[0]; err != nil {
				t.Error(err)
			}
		}
		renew(extended, time.Hour)
		renew(other, time.Minute)
		if f.lease != time.Hour || b.holdOf(extended.Hold).conn != conn {
			t.Errorf("a lease of %v, want 1h on the connection of both", f.lease)
		}
		if take(t, b, later); b.holdOf(later.Hold).conn == conn {
			t.Error("a later hold joins the connection")
		}
		release(t, b, extended)
		renew(other, time.Minute)
		if f.lease != time.Minute || conn.maxSilence != time.Minute {
			t.Errorf("a lease of %v after the release, want 1m", f.lease)
		}
	})
}

// Idle connections are closed after a while. The hold's connection stays.
func TestIdleConnectionsAreClosed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newFake(t, &fakeServer{})
		r := request("lock")
		take(t, b, r)
		time.Sleep(2 * idleTime)
		synctest.Wait()
		if n := b.DB.Stats().InUse; n != 1 {
			t.Errorf("%d connections are in use, want the hold's", n)
		}
	})
}
