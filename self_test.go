package distlock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// A caller that would wait for itself gets an error at once. It says what to do.
func TestWaitForOneself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		c, other := client(t, store.Connect(), nil), client(t, store.Connect(), nil)
		rw := c.RWMutex("rw")
		again := c.RWMutex("rw", distlock.Reentrant())
		for what, test := range map[string]struct {
			outer, inner func(context.Context, func(context.Context) error) error
			says         string
		}{
			"a mutex":                      {c.Mutex("m").Do, c.Mutex("m").Do, "Reentrant"},
			"a mutex, by another client":   {c.Mutex("m").Do, other.Mutex("m").Do, "Reentrant"},
			"a writer":                     {rw.Do, rw.Do, "Reentrant"},
			"a reader that wants to write": {rw.RDo, rw.Do, "Reentrant"},
			"a re-entrant reader":          {again.RDo, again.Do, "unlock it first"},
			"a writer that wants to read":  {rw.Do, rw.RDo, "Reentrant"},
			"the only permit":              {c.Semaphore("s", 1).Do, c.Semaphore("s", 1).Do, "Reentrant"},
		} {
			err := test.outer(t.Context(), func(ctx context.Context) error {
				return test.inner(ctx, func(context.Context) error { return nil })
			})
			if !errors.Is(err, distlock.ErrInvalid) || !strings.Contains(err.Error(), "wait for itself") || !strings.Contains(err.Error(), test.says) {
				t.Errorf("%s: got %v; want an error that names the cause and %q", what, err, test.says)
			}
		}
	})
}

// A caller that does not wait for itself is granted as before.
func TestNoWaitForOneself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := client(t, memlock.New(), nil)
		rw := c.RWMutex("rw")
		for what, test := range map[string]struct {
			outer, inner func(context.Context, func(context.Context) error) error
		}{
			"another lock":   {c.Mutex("m").Do, c.Mutex("n").Do},
			"readers":        {rw.RDo, rw.RDo},
			"another permit": {c.Semaphore("s", 2).Do, c.Semaphore("s", 2).Do},
			"re-entrant":     {c.Mutex("r", distlock.Reentrant()).Do, c.Mutex("r", distlock.Reentrant()).Do},
		} {
			ran := false
			err := test.outer(t.Context(), func(ctx context.Context) error {
				return test.inner(ctx, func(context.Context) error { ran = true; return nil })
			})
			if err != nil || !ran {
				t.Errorf("%s: got %v, ran %v", what, err, ran)
			}
		}
		err := c.Mutex("m").Do(t.Context(), func(ctx context.Context) error {
			_, err := c.Mutex("m").TryLock(ctx)
			return err
		})
		if !errors.Is(err, distlock.ErrHeld) {
			t.Errorf("a try, which does not wait: got %v; want ErrHeld", err)
		}
		lease := mustLock(t, c.Mutex("m"))
		ctx := context.WithoutCancel(lease.Context())
		mustUnlock(t, lease)
		expect.OK(t, expect.Err(c.Mutex("m").Lock(ctx)), "after the outer lease has ended")
	})
}

// A reader behind a writer that waits for it is refused at once, wherever the writer is, and so is a caller that has all
// permits: each would wait for itself.
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
			if err != nil {
				t.Fatalf("a re-entrant reader behind a writer %s: %v", what, err)
			}
			mustUnlock(t, inner)
			mustUnlock(t, outer)
			mustUnlock(t, <-writer)
		}
		s := c.Semaphore("s", 2)
		first := must.Get(s.Acquire(t.Context()))(t)
		second := must.Get(s.Acquire(first.Context()))(t)
		expect.Be(t, expect.Err(s.Acquire(second.Context())), distlock.ErrInvalid, "a third permit of two")
		mustUnlock(t, second)
		mustUnlock(t, first)
		allFree(t, store)
	})
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
