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
		tries := f.get(&f.tries)
		wantHeld(t, b, theirs)
		if n := f.get(&f.tries); n != tries {
			t.Error("the server received a request for a lock that this process holds")
		}
		release(t, b, mine)
		if next := take(t, b, theirs); next.Fence <= first.Last() {
			t.Errorf("fence %d after %d", next.Fence, first.Last())
		}
		if err := b.Release(t.Context(), mine.Hold); !errors.Is(err, lock.ErrLost) {
			t.Errorf("a second Release: %v, want ErrLost", err)
		}
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
			if err := b.Renew(t.Context(), []lock.Hold{r.Hold})[0]; err != nil {
				t.Fatal(err)
			}
		}
		renewed := time.Now()
		if after := (<-lost).Sub(renewed); after < r.TTL || after > r.TTL+checkInterval {
			t.Errorf("lost %v after the last renewal, want %v", after, r.TTL)
		}
		if err := b.Renew(t.Context(), []lock.Hold{r.Hold})[0]; !errors.Is(err, lock.ErrLost) {
			t.Errorf("Renew: %v, want ErrLost", err)
		}
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

// One statement renews all holds of a connection.
func TestRenewSendsOneStatementForAConnection(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := &fakeServer{}
		b := newFake(t, f)
		var holds []lock.Hold
		for _, name := range []string{"a", "b", "c"} {
			r := request(name)
			take(t, b, r)
			holds = append(holds, r.Hold)
		}
		before := f.get(&f.pings)
		stranger := request("d").Hold
		errs := b.Renew(t.Context(), append(holds, stranger))
		if n := f.get(&f.pings) - before; n != 1 || errors.Join(errs[:3]...) != nil || !errors.Is(errs[3], lock.ErrLost) {
			t.Errorf("%d statements, %v", n, errs)
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
		if err := b.Renew(t.Context(), []lock.Hold{r.Hold})[0]; !errors.Is(err, lock.ErrLost) {
			t.Errorf("Renew: %v, want ErrLost", err)
		}
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

// killsBeforeAGrant expects that the lost connection of r's owner is killed before the owner is granted anything again.
func (f *fakeServer) killsBeforeAGrant(t *testing.T, b *Backend, r lock.Request) {
	t.Helper()
	if _, err := b.Acquire(t.Context(), r); err == nil || !strings.Contains(err.Error(), "can't be ended") {
		t.Errorf("%v, want an error about the lost connection", err)
	}
	f.set(func() { f.down = false })
	take(t, b, r)
	if n := f.get(&f.kills); n != 1 {
		t.Errorf("%d connections were killed, want 1", n)
	}
}

// A lost connection is killed before its owner is granted anything again.
func TestOrphansAreKilledFirst(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := &fakeServer{}
		b := newFake(t, f)
		r := request("lock")
		take(t, b, r)
		f.set(func() { f.down = true })
		time.Sleep(time.Second)
		f.killsBeforeAGrant(t, b, r)
	})
}

// The server keeps the connection of a hold for the longest TTL of a renewal.
func TestOrphansWithALongerLease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := &fakeServer{}
		b := newFake(t, f)
		r := request("lock")
		take(t, b, r)
		r.TTL = time.Hour
		if err := b.Renew(t.Context(), []lock.Hold{r.Hold})[0]; err != nil {
			t.Fatal(err)
		}
		f.set(func() { f.down = true })
		time.Sleep(r.TTL / 2)
		f.killsBeforeAGrant(t, b, r)
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
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		_, acquire := b.Acquire(t.Context(), r)
		_, watch := b.Watch(t.Context(), r)
		for i, err := range slices.Concat([]error{acquire, watch, b.Release(t.Context(), r.Hold), b.Commit(t.Context(), r.Owner, nil)}, b.Renew(t.Context(), []lock.Hold{r.Hold})) {
			if !errors.Is(err, lock.ErrClosed) {
				t.Errorf("call %d: %v, want ErrClosed", i, err)
			}
		}
	})
}

// The connection of a hold that is over when the next one begins is closed.
func TestConnectionOfAStaleHoldIsClosed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := &fakeServer{}
		b := newFake(t, f, onePerConn)
		first, second := request("x"), request("x")
		take(t, b, first)
		w := watch(t, b, second)
		gone := b.holdOf(first.Hold).conn
		f.end(func(k *fakeConn) bool { return k == gone.conn.(*fakeConn) })
		<-w.Ready
		take(t, b, second)
		w.Close()
		release(t, b, second)
		time.Sleep(time.Hour)
		b.mu.Lock()
		defer b.mu.Unlock()
		if n := len(b.conns); n > 0 {
			t.Errorf("%d connections are left", n)
		}
	})
}

// A hold whose connection has ended takes nothing with it of the hold that another connection has got meanwhile.
func TestStaleHoldLeavesItsSuccessor(t *testing.T) {
	for _, same := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			f := &fakeServer{}
			b := newFake(t, f, onePerConn)
			first, other := request("x"), request("y")
			take(t, b, first)
			take(t, b, other)
			gone, c := b.holdOf(first.Hold).conn, b.holdOf(other.Hold).conn
			f.end(func(k *fakeConn) bool { return k == gone.conn.(*fakeConn) })
			l := Lock{Name: "x", Key: f.Key("x"), Owner: lock.NewOwner(), SeparateNumber: true}
			if same {
				l.Owner = first.Owner
			}
			h, _, err := c.tryLock(t.Context(), l)
			if err != nil {
				t.Fatal(err)
			}
			gone.lose(errors.New("it was killed"))
			b.mu.Lock()
			byKey, byOwner, lost := b.byKey[l.Key], b.byOwner[l.Owner], b.lost[l.Owner]
			b.mu.Unlock()
			if byKey != h || byOwner != h || !lost.IsZero() {
				t.Errorf("same owner %v: by key %v, by owner %v, lost %v; want the new hold", same, byKey == h, byOwner == h, lost)
			}
			wantHeld(t, b, request("x"))
			if err := b.Release(t.Context(), lock.Hold{Name: "x", Owner: l.Owner}); err != nil {
				t.Error(err)
			}
			take(t, b, request("x"))
		})
	}
}

// A connection ends between its last answer and the grant. A successor may hold by then, so nothing is granted.
func TestNoGrantOnAnEndedConnection(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := &fakeServer{}
		b := newFake(t, f, onePerConn)
		f.confirmed = func() { f.set(func() { f.down = true }) }
		r := request("lock")
		if g, err := b.Acquire(t.Context(), r); err == nil || lock.Final(err) || errors.Is(err, lock.ErrHeld) {
			t.Errorf("%+v, %v; want unknown", g, err)
		}
		f.confirmed = nil
		f.set(func() { f.down = false })
		take(t, b, r)
	})
}
