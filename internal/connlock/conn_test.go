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
	"github.com/distlock/distlock/internal/testkit/expect"
)

// closeIdle closes the idle connections.
func closeIdle(b *Backend) { b.closeIdle() }

// A lock has a connection of its own. After the release the next lock has it.
func TestALockHasAConnection(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := &fakeServer{}
		b := newFake(t, f)
		for i := range 20 {
			r := request(fmt.Sprint("pair ", i))
			take(t, b, r)
			release(t, b, r)
		}
		if n := f.get(&f.opened); n != 1 {
			t.Errorf("%d connections for 20 pairs, want 1", n)
		}
		for i := range 20 {
			take(t, b, request(fmt.Sprint("held ", i)))
		}
		if n := f.get(&f.opened); n != 20 {
			t.Errorf("%d connections for 20 holds", n)
		}
	})
}

// A connection lives for the longest TTL of its hold, and not for that of an earlier one.
func TestExtendEndsWithItsHold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := &fakeServer{}
		b := newFake(t, f)
		first, next := request("lock"), request("lock")
		take(t, b, first)
		for _, ttl := range []time.Duration{time.Hour, time.Minute} {
			renewed := first.Hold
			renewed.TTL = ttl
			if err := b.Renew(t.Context(), []lock.Hold{renewed})[0]; err != nil || f.lease != time.Hour {
				t.Errorf("a lease of %v, %v; want 1h", f.lease, err)
			}
		}
		release(t, b, first)
		if take(t, b, next); f.lease != next.TTL || f.get(&f.opened) != 1 {
			t.Errorf("a lease of %v on connection %d, want %v on the first", f.lease, f.opened, next.TTL)
		}
	})
}

// An Extend that fails before it is sent changes nothing.
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

// An attempt waits for a connection of a limited pool.
func TestAttemptsWaitForAConnection(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newFake(t, &fakeServer{limit: 3})
		first := request("a")
		take(t, b, first)
		take(t, b, request("b"))
		time.AfterFunc(time.Millisecond, func() { release(t, b, first) })
		began := time.Now()
		take(t, b, request("c"))
		if took := time.Since(began); took != time.Millisecond {
			t.Errorf("granted after %v, though a connection was free after 1ms", took)
		}
		synctest.Wait() // for the release
	})
}

// All but one of the connections of a limited pool can have locks.
func TestLimitOfThePool(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newFake(t, &fakeServer{limit: 3})
		first := request("a")
		take(t, b, first)
		take(t, b, request("b"))
		_, err := b.Acquire(t.Context(), request("c"))
		if err == nil || lock.Final(err) || !errors.Is(err, lock.ErrUnsent) || !strings.Contains(err.Error(), "limit is 3") {
			t.Errorf("%v, want an error that names the limit", err)
		}
		expect.OK(t, b.DB.PingContext(t.Context()))
		release(t, b, first)
		take(t, b, request("c"))
		b.DB.SetMaxOpenConns(0)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		expect.OK(t, expect.Err(b.Acquire(ctx, request("d"))), "the limit that was removed")
	})
}

func TestPoolsThatAreTooSmall(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := &fakeServer{limit: 1}
		expect.Be(t, expect.Err(New(Config{DB: f.pool(t), Dialect: f})), lock.ErrInvalid)
	})
}

// An attempt on an idle connection that has fallen silent ends with its caller. The next one finds another connection,
// however many have fallen silent.
func TestSilentIdleConnection(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := &fakeServer{}
		b := newFake(t, f)
		var all []lock.Request
		for i := range 5 {
			all = append(all, request(fmt.Sprint(i)))
			take(t, b, all[i])
		}
		for _, r := range all {
			release(t, b, r)
		}
		f.set(func() { f.silent = f.opened })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := b.Acquire(ctx, request("lock")); err == nil {
			t.Fatal("a silent connection has granted")
		}
		synctest.Wait()
		start := time.Now()
		take(t, b, request("lock"))
		if took := time.Since(start); took > 2*cleanupTime {
			t.Errorf("it took %v", took)
		}
	})
}

// The connection of a hold that is over when the next one begins is closed.
func TestConnectionOfAStaleHoldIsClosed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := &fakeServer{}
		b := newFake(t, f)
		first, second := request("x"), request("x")
		take(t, b, first)
		w := watch(t, b, second)
		f.end(func(*fakeConn) bool { return true })
		<-w.Ready
		take(t, b, second)
		w.Close()
		release(t, b, second)
		time.Sleep(time.Hour)
		if n := b.DB.Stats().InUse; n > 0 {
			t.Errorf("%d connections are in use", n)
		}
	})
}

// The connection of a short TTL is closed before the server ends it.
func TestIdleConnectionOfAShortTTL(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newFake(t, &fakeServer{})
		r := request("lock")
		r.TTL = 4 * time.Second
		take(t, b, r)
		release(t, b, r)
		time.Sleep(r.TTL)
		synctest.Wait()
		if n := b.DB.Stats().InUse; n > 0 {
			t.Errorf("%d connections are in use", n)
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
