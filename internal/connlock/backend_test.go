package connlock

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	lock "github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

func TestConnectionsThatDoNotExcludeEachOtherAreRefused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := &fakeServer{has: map[string]*fakeConn{}, loose: true}
		_, err := New(t.Context(), Config{DB: f.pool(t), Dialect: f, Package: "fake"})
		if !errors.Is(err, lock.ErrUnsupported) {
			t.Errorf("%v, want ErrUnsupported", err)
		}
	})
}

func TestHoldsExcludeEachOther(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := &fakeServer{}
		b := newFake(t, f)
		mine, theirs := request("lock"), request("lock")
		first := take(t, b, mine)
		wantHeld(t, b, theirs)
		release(t, b, mine)
		if next := take(t, b, theirs); next.Fence <= first.Last() {
			t.Errorf("fence %d after %d", next.Fence, first.Last())
		}
		expect.Be(t, b.Release(t.Context(), mine.Hold), lock.ErrLost, "a second Release")
	})
}

// A hold lives while its connection answers within the TTL. It is lost when the TTL ends without an
// answer.
func TestSilentConnectionsAreGivenUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newFake(t, &fakeServer{})
		r := request("lock")
		lost := make(chan time.Time, 1)
		r.OnLost = func() { lost <- time.Now() }
		take(t, b, r)
		for range 3 {
			time.Sleep(r.TTL / 2)
			must.OK(t, b.Renew(t.Context(), []lock.Hold{r.Hold})[0])
		}
		renewed := time.Now()
		if after := (<-lost).Sub(renewed); after < r.TTL || after > r.TTL+checkInterval {
			t.Errorf("lost %v after the last renewal, want %v", after, r.TTL)
		}
		expect.Be(t, b.Renew(t.Context(), []lock.Hold{r.Hold})[0], lock.ErrLost, "Renew")
	})
}

// The backend detects without a call that the server has closed a connection.
func TestClosedConnectionsAreNoticed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := &fakeServer{}
		b := newFake(t, f)
		r := request("lock")
		lost := make(chan time.Time, 1)
		r.OnLost = func() { lost <- time.Now() }
		take(t, b, r)
		f.set(func() { f.down = true })
		start := time.Now()
		if after := (<-lost).Sub(start); after > checkInterval {
			t.Errorf("noticed after %v, want %v", after, checkInterval)
		}
	})
}

// Each hold is renewed on its own connection, and waits for no other one.
func TestRenewalsAreIndependent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := &fakeServer{}
		b := newFake(t, f)
		silent, other := request("silent"), request("other")
		take(t, b, silent)
		f.set(func() { f.silent = f.opened })
		closeIdle(b)
		take(t, b, other)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		errs := b.Renew(ctx, []lock.Hold{silent.Hold, other.Hold, request("none").Hold})
		if errs[0] == nil || errors.Is(errs[0], lock.ErrLost) || errs[1] != nil || !errors.Is(errs[2], lock.ErrLost) {
			t.Errorf("%v, want unknown, nil, ErrLost", errs)
		}
	})
}

// An answer at the end of the trust in a connection is no grant. The driver may have closed the
// connection, and still return the answer.
func TestAnswerAtTheEndOfTrust(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := &fakeServer{}
		b := newFake(t, f)
		r := request("lock")
		take(t, b, r)
		time.Sleep(r.TTL / 2)
		f.late = true
		if g, err := b.Acquire(t.Context(), r); err == nil {
			t.Errorf("granted %+v on a connection that the driver has closed", g)
		}
		expect.Be(t, b.Renew(t.Context(), []lock.Hold{r.Hold})[0], lock.ErrLost, "Renew")
	})
}

// Release of a hold that was lost with its connection is ErrLost from the first call, even if the
// server does not answer. After an unknown outcome, a later ErrLost would mean that the release
// succeeded.
func TestReleaseOfALostHold(t *testing.T) {
	for name, noticed := range map[string]time.Duration{"noticed": time.Second, "not noticed yet": 0} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := &fakeServer{}
				b := newFake(t, f)
				r := request("lock")
				take(t, b, r)
				f.set(func() { f.down = true })
				time.Sleep(noticed)
				for try := range 3 {
					if err := b.Release(t.Context(), r.Hold); !errors.Is(err, lock.ErrLost) {
						t.Errorf("try %d: %v, want ErrLost", try, err)
					}
				}
			})
		})
	}
}

// A connection without an answer is killed through another one.
func TestFailedConnectionsAreKilled(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := &fakeServer{}
		b := newFake(t, f)
		r := request("lock")
		take(t, b, r)
		f.set(func() { f.silent = f.opened })
		ctx, cancel := context.WithTimeout(t.Context(), r.TTL+time.Second)
		defer cancel()
		expect.Be(t, b.Renew(ctx, []lock.Hold{r.Hold})[0], lock.ErrLost)
		synctest.Wait()
		if n := f.get(&f.kills); n != 1 {
			t.Errorf("%d connections were killed, want 1", n)
		}
	})
}

// If a lock's connection can't write the number, another connection does. The lock's connection is
// checked afterwards.
func TestNumbersOfLockedRows(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := &fakeServer{}
		b := newFake(t, f)
		r := request("lock")
		first := take(t, b, r)
		f.rowLocked = true
		if g := take(t, b, r); g.Fence <= first.Fence {
			t.Errorf("fence %d after %d", g.Fence, first.Fence)
		}
		release(t, b, r)
		f.confirm = errors.New("it has ended")
		if _, err := b.Acquire(t.Context(), r); err == nil {
			t.Error("granted without a check of the lock's own connection")
		}
		f.confirm = nil
		take(t, b, request("lock"))
	})
}

// Close returns although a statement ignores its context and never returns.
func TestCloseIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := &fakeServer{}
		b := newFake(t, f)
		r := request("lock")
		take(t, b, r)
		blocked := make(chan struct{})
		f.set(func() { f.blocked = blocked })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if errs := b.Renew(ctx, []lock.Hold{r.Hold}); errs[0] == nil {
			t.Error("renewed without an answer")
		}
		began := time.Now()
		if err := b.Close(); err == nil {
			t.Error("Close does not report a connection that has not ended")
		}
		if took := time.Since(began); took > closeTime {
			t.Errorf("Close took %v, want %v at most", took, closeTime)
		}
		close(blocked)
		synctest.Wait()
	})
}

func TestCallsAfterClose(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newFake(t, &fakeServer{})
		r := request("lock")
		take(t, b, r)
		must.OK(t, b.Close())
		_, acquire := b.Acquire(t.Context(), r)
		_, watch := b.Watch(t.Context(), r)
		for i, err := range slices.Concat([]error{acquire, watch, b.Release(t.Context(), r.Hold), b.Commit(t.Context(), r.Owner, nil)}, b.Renew(t.Context(), []lock.Hold{r.Hold})) {
			if !errors.Is(err, lock.ErrClosed) {
				t.Errorf("call %d: %v, want ErrClosed", i, err)
			}
		}
	})
}

// A hold whose connection has ended takes nothing with it of the hold that another connection has got meanwhile.
func TestStaleHoldLeavesItsSuccessor(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := &fakeServer{}
		b := newFake(t, f)
		first, second := request("x"), request("x")
		take(t, b, first)
		f.end(func(*fakeConn) bool { return true })
		take(t, b, second)
		expect.Be(t, b.Release(t.Context(), first.Hold), lock.ErrLost, "the first hold")
		wantHeld(t, b, request("x"))
		release(t, b, second)
		take(t, b, request("x"))
	})
}

// A connection ends between its last answer and the grant. A successor may hold by then, so nothing is granted.
func TestNoGrantOnAnEndedConnection(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := &fakeServer{}
		b := newFake(t, f)
		f.rowLocked = true
		f.confirmed = func() {
			f.end(func(*fakeConn) bool { return true })
			f.set(func() { f.down = true })
		}
		r := request("lock")
		if g, err := b.Acquire(t.Context(), r); err == nil || lock.Final(err) || errors.Is(err, lock.ErrHeld) {
			t.Errorf("%+v, %v; want unknown", g, err)
		}
		f.confirmed = nil
		f.set(func() { f.down = false })
		take(t, b, r)
	})
}
