package connlock

import (
	"database/sql"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock"
	lock "github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

func TestCommitEndsTheHold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newFake(t, &fakeServer{inTx: true})
		r := request("lock")
		take(t, b, r)
		must.OK(t, b.Commit(t.Context(), r.Owner, func(tx *sql.Tx) error {
			if tx == nil {
				t.Error("there is no transaction")
			}
			return nil
		}))
		take(t, b, request("lock"))
		release(t, b, r) // it was released already
		expect.Be(t, b.Release(t.Context(), r.Hold), lock.ErrLost, "a second Release")
		expect.Be(t, b.Commit(t.Context(), r.Owner, nil), lock.ErrLost, "a second Commit")
	})
}

// An Unlock after a Commit hands nothing to the next waiter of the process: the lock may be another one's by now.
func TestHandOffAfterACommit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := &fakeServer{inTx: true}
		b := newFake(t, f)
		rival := newFake(t, f)
		c := must.Get(distlock.New(b, &distlock.Options{HandoffWindow: time.Minute}))(t)
		defer c.Close()
		first := must.Get(c.Mutex("lock").Lock(t.Context()))(t)
		second := make(chan *distlock.Lease, 1)
		go func() {
			l, err := c.Mutex("lock").Lock(t.Context())
			if err != nil {
				t.Error(err)
			}
			second <- l
		}()
		synctest.Wait()
		must.OK(t, b.Commit(t.Context(), first.Owner(), func(*sql.Tx) error { return nil }))
		r := request("lock")
		take(t, rival, r)
		expect.OK(t, first.Unlock(t.Context()), "Unlock after the Commit")
		time.Sleep(time.Second)
		if len(second) > 0 {
			t.Error("a waiter holds beside another process")
		}
		release(t, rival, r)
		expect.OK(t, (<-second).Unlock(t.Context()))
	})
}

// A lock that is not the transaction's is held until it is released, with or without the work, and its connection has no other
// lock afterwards: the work may have changed settings.
func TestCommitKeepsTheHold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := &fakeServer{}
		b := newFake(t, f)
		r := request("lock")
		take(t, b, r)
		failed := errors.New("no")
		for _, result := range []error{nil, failed, nil} {
			expect.Equal(t, b.Commit(t.Context(), r.Owner, func(*sql.Tx) error {
				if err := b.Renew(t.Context(), []lock.Hold{r.Hold})[0]; err == nil || errors.Is(err, lock.ErrLost) {
					t.Errorf("Renew: %v, want an error of unknown outcome", err)
				}
				return result
			}) == nil, result == nil, "Commit")
			wantHeld(t, b, request("lock"))
			must.OK(t, b.Renew(t.Context(), []lock.Hold{r.Hold})[0])
		}
		release(t, b, r)
		opened := f.get(&f.opened)
		for range 3 {
			take(t, b, request(lock.NewOwner()))
		}
		if n := f.get(&f.opened); n != opened+2 { // and one that was refused is idle
			t.Errorf("%d connections were opened for 3 locks", n-opened)
		}
	})
}

// A waiter of the same backend may have the lock before the commit is answered. That is no loss for the committer.
func TestWaiterIsGrantedDuringACommit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newFake(t, &fakeServer{inTx: true, commitTime: time.Second})
		r, next := request("lock"), request("lock")
		r.OnLost = func() { t.Error("the committer has lost its lock") }
		take(t, b, r)
		w := watch(t, b, next)
		defer w.Close()
		must.OK(t, b.Commit(t.Context(), r.Owner, func(*sql.Tx) error { return nil }))
		<-w.Ready
		take(t, b, next)
		release(t, b, r)
		release(t, b, next)
		time.Sleep(2 * idleTime)
		synctest.Wait()
		if n := b.DB.Stats().InUse; n > 0 {
			t.Errorf("%d connections are in use", n)
		}
	})
}

// Work that panics is not stored, and the panic goes on.
func TestWorkThatPanics(t *testing.T) {
	for _, inTx := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			b := newFake(t, &fakeServer{inTx: inTx})
			r := request("lock")
			take(t, b, r)
			func() {
				defer func() { expect.Equal(t, recover(), any("oh"), "the panic") }()
				b.Commit(t.Context(), r.Owner, func(*sql.Tx) error { panic("oh") })
			}()
			release(t, b, r)
			take(t, b, request("lock"))
		})
	}
}

// A release that waits for a Commit has nothing left to release, like one that comes later.
func TestReleaseThatWaitsForACommit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := &fakeServer{inTx: true}
		b := newFake(t, f)
		r := request("lock")
		take(t, b, r)
		blocked := make(chan struct{})
		f.set(func() { f.blocked = blocked })
		committed, released := make(chan error, 1), make(chan error, 1)
		go func() { committed <- b.Commit(t.Context(), r.Owner, func(*sql.Tx) error { return nil }) }()
		synctest.Wait()
		go func() { released <- b.Release(t.Context(), r.Hold) }()
		synctest.Wait()
		close(blocked)
		expect.OK(t, <-committed, "Commit")
		expect.OK(t, <-released, "Release")
	})
}

// A Commit that comes during a release does no work: its transaction has no lock any more.
func TestCommitDuringARelease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := &fakeServer{inTx: true, unlockTime: time.Second}
		b := newFake(t, f)
		r := request("lock")
		take(t, b, r)
		released := make(chan error, 1)
		go func() { released <- b.Release(t.Context(), r.Hold) }()
		synctest.Wait()
		err := b.Commit(t.Context(), r.Owner, func(*sql.Tx) error {
			t.Error("the work runs without the lock")
			return nil
		})
		if !errors.Is(err, lock.ErrLost) {
			t.Errorf("Commit: %v, want ErrLost", err)
		}
		expect.OK(t, <-released, "Release")
	})
}

func TestCommitWithoutAnAnswer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newFake(t, &fakeServer{unanswered: true})
		r := request("lock")
		take(t, b, r)
		err := b.Commit(t.Context(), r.Owner, func(*sql.Tx) error { return nil })
		if err == nil || errors.Is(err, lock.ErrLost) || !strings.Contains(err.Error(), "unknown") {
			t.Errorf("%v, want an unknown outcome", err)
		}
	})
}
