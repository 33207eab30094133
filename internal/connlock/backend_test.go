package connlock

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	lock "github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

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

// What an attempt without an answer may have taken is gone when its release is answered.
func TestReleaseOfAnUnknownAttempt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := &fakeServer{}
		b := newFake(t, f)
		r := request("lock")
		take(t, b, r)
		release(t, b, r)
		f.set(func() { f.silent, f.unkillable = f.opened, true })
		orphan := &fakeConn{f: f, id: 1} // the server takes the lock, and does not see that the client has gone
		orphan.take(Lock{Name: "lock"})
		soon := func() (context.Context, context.CancelFunc) { return context.WithTimeout(t.Context(), 5*time.Second) }
		ctx, cancel := soon()
		defer cancel()
		if _, err := b.Acquire(ctx, r); err == nil || lock.Final(err) || errors.Is(err, lock.ErrHeld) {
			t.Fatalf("an attempt on a silent connection: %v", err)
		}
		ctx, cancel = soon()
		defer cancel()
		if err := b.Release(ctx, r.Hold); err == nil || errors.Is(err, lock.ErrLost) {
			t.Errorf("%v, though the lock may be taken", err)
		}
		f.set(func() { f.unkillable = false })
		expect.Be(t, b.Release(t.Context(), r.Hold), lock.ErrLost, "Release when it is known")
		take(t, b, request("lock"))
	})
}

// An error of the server is explained, and nothing was sent if there is no connection.
func TestServersWithoutConnections(t *testing.T) {
	bubble(t, func(t *testing.T) {
		full := errors.New("too many connections")
		b := newFake(t, &fakeServer{refused: full})
		_, err := b.Acquire(t.Context(), request("lock"))
		if !errors.Is(err, full) || !errors.Is(err, lock.ErrUnsent) || !strings.Contains(err.Error(), "it means") || lock.Final(err) {
			t.Errorf("%v, want an explained error", err)
		}
	})
}
