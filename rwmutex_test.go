package distlock_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// TestHammerShared: readers and writers, in real time.
func TestHammerShared(t *testing.T) {
	store := memlock.NewStore()
	var readers, writers atomic.Int64
	var wg sync.WaitGroup
	for range 2 {
		rw := client(t, store.Connect(), nil).RWMutex("rw")
		for i := range 8 {
			wg.Go(func() {
				for range 50 {
					shareOnce(t, rw, i%4 == 0, &readers, &writers)
				}
			})
		}
	}
	wg.Wait()
}

func shareOnce(t *testing.T, rw *distlock.RWMutex, write bool, readers, writers *atomic.Int64) {
	do, mine := rw.RDo, readers
	if write {
		do, mine = rw.Do, writers
	}
	err := do(t.Context(), func(context.Context) error {
		mine.Add(1)
		if w, r := writers.Load(), readers.Load(); w > 1 || w == 1 && r > 0 {
			t.Errorf("%d writers beside %d readers", w, r)
		}
		mine.Add(-1)
		return nil
	})
	expect.OK(t, err, "rw")
}

// A reader that has lost its hold waits for a writer as others do: that one does not wait for it.
func TestReaderThatHasLostItsHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		r := &rig{Backend: store.Connect()}
		c, other := client(t, r, nil), client(t, store.Connect(), nil)
		outer := must.Get(c.RWMutex("x").RLock(t.Context()))(t)
		r.refuse(errLogin)
		inner := waiter(t, context.WithoutCancel(outer.Context()), reading(c.RWMutex("x").RLock))
		writer := mustLock(t, other.RWMutex("x"))
		r.giveBack()
		time.Sleep(time.Minute)
		mustUnlock(t, writer)
		mustUnlock(t, <-inner)
	})
}

// reading makes a lock of a function.
type reading func(context.Context) (*distlock.Lease, error)

func (r reading) Lock(ctx context.Context) (*distlock.Lease, error) { return r(ctx) }

// TryRLock is refused by the backend alone: a writer of this process that waits for a reader is not in the way where
// others may read.
func TestTryRLockBesideAWriterThatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		connect := func() *distlock.Client {
			return client(t, &rig{Backend: store.Connect(), caps: withoutQueue}, nil)
		}
		c, other := connect(), connect()
		held := must.Get(other.RWMutex("x").RLock(t.Context()))(t)
		writer := waiter(t, t.Context(), c.RWMutex("x"))
		lease := must.Get(c.RWMutex("x").TryRLock(t.Context()))(t)
		mustUnlock(t, lease)
		mustUnlock(t, held)
		mustUnlock(t, <-writer)
	})
}

// A first attempt without an answer is reported once, and as unavailable. The cause of the context does not decide that.
func TestReaderWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		r.acquire = func(ctx context.Context, _ driver.Request, _ acquirer) (driver.Grant, error) {
			<-ctx.Done()
			return driver.Grant{}, ctx.Err()
		}
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, distlock.ErrLost)
		defer cancel()
		_, err := client(t, r, nil).RWMutex("x").RLock(ctx)
		e := (*distlock.Error)(nil)
		if !errors.As(err, &e) || e.Kind != distlock.ErrUnavailable || strings.Count(err.Error(), "while waiting") != 1 {
			t.Errorf("got %v", err)
		}
	})
}

// A reader that waits knows the answer to its first attempt, which it has made beside the queue.
func TestReaderKnowsItsFirstAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		writer := mustLock(t, client(t, store.Connect(), nil).RWMutex("x"))
		r := &rig{Backend: store.Connect()}
		var attempts atomic.Int32
		r.acquire = func(ctx context.Context, req driver.Request, next acquirer) (driver.Grant, error) {
			if attempts.Add(1) > 1 {
				<-ctx.Done()
				return driver.Grant{}, ctx.Err()
			}
			return next(ctx, req)
		}
		var waits []distlock.Event
		c := client(t, r, &distlock.Options{Observer: &distlock.Observer{Waiting: func(e distlock.Event) { waits = append(waits, e) }}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := c.RWMutex("x").RLock(ctx)
		if !errors.Is(err, distlock.ErrHeld) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v; want that it is held, and the deadline", err)
		}
		if len(waits) != 1 || waits[0].Blocker == nil {
			t.Errorf("it waits for %+v; want the writer", waits)
		}
		mustUnlock(t, writer)
	})
}

func TestRWMutexReentry(t *testing.T) {
	c := client(t, memlock.New(), nil)
	rw := c.RWMutex("x", distlock.Reentrant())
	w := mustLock(t, rw)
	r := must.Get(rw.RLock(w.Context()))(t)
	mustUnlock(t, r)
	mustUnlock(t, w)
	r = must.Get(rw.RLock(t.Context()))(t)
	expect.Be(t, expect.Err(rw.TryLock(r.Context())), distlock.ErrHeld, "write inside read")
	mustUnlock(t, r)
}

// A reader behind a writer that waits for it is refused at once, wherever the writer is: it would wait for itself.
func TestWaitForOneselfBehindOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		c, other := client(t, store.Connect(), nil), client(t, store.Connect(), nil)
		for what, writers := range map[string]*distlock.Client{"of this process": c, "of another process": other} {
			outer := must.Get(c.RWMutex("rw").RLock(t.Context()))(t)
			writer := waiter(t, t.Context(), writers.RWMutex("rw"))
			if _, err := c.RWMutex("rw").RLock(outer.Context()); !errors.Is(err, distlock.ErrInvalid) || !strings.Contains(err.Error(), "wait for itself") {
				t.Errorf("a reader behind a writer %s: %v", what, err)
			}
			inner, err := c.RWMutex("rw", distlock.Reentrant()).RLock(outer.Context())
			must.OK(t, err, "a re-entrant reader behind a writer", what)
			mustUnlock(t, inner)
			mustUnlock(t, outer)
			mustUnlock(t, <-writer)
		}
		allFree(t, store)
	})
}
