package distlock_test

import (
	"context"
	"errors"
	"math/rand/v2"
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
)

// guarded is protected by a lock. It detects two holders at once and a fence that decreases.
type guarded struct {
	inside atomic.Int64
	fence  atomic.Uint64
	turns  atomic.Int64
}

func (g *guarded) enter(t testing.TB, fence uint64, limit int64) {
	if n := g.inside.Add(1); n > limit {
		t.Errorf("%d inside at once, want %d", n, limit)
	}
	if limit == 1 {
		if last := g.fence.Swap(fence); last >= fence {
			t.Errorf("fence %d after %d", fence, last)
		}
	}
	g.turns.Add(1)
}

func (g *guarded) leave() { g.inside.Add(-1) }

// TestHammer: many goroutines of several clients, half of which give up now and
// then, on one lock whose backend loses answers.
func TestHammer(t *testing.T) {
	for _, lossy := range []bool{false, true} {
		name := "sound backend"
		if lossy {
			name = "lossy backend"
		}
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { hammer(t, lossy) })
		})
	}
}

func hammer(t *testing.T, lossy bool) {
	store := memlock.NewStore()
	var g guarded
	var wg sync.WaitGroup
	var last *distlock.Client
	for range 3 {
		r := &rig{Backend: store.Connect()}
		if lossy {
			r.acquire, r.release = loseAcquires, loseReleases
		}
		c := client(t, r, &distlock.Options{TTL: 3 * time.Second})
		last = c
		for range 8 {
			wg.Go(func() { hammerOne(t, c, &g) })
		}
	}
	wg.Wait()
	if g.turns.Load() < 200 {
		t.Errorf("only %d turns", g.turns.Load())
	}
	time.Sleep(10 * time.Second) // virtual: background releases and TTLs
	free(t, last, "x")
}

func hammerOne(t *testing.T, c *distlock.Client, g *guarded) {
	m := c.Mutex("x")
	for range 25 {
		ctx, cancel := t.Context(), context.CancelFunc(func() {})
		if rand.N(2) == 0 {
			ctx, cancel = context.WithTimeout(ctx, rand.N(20*time.Millisecond))
		}
		lease, err := m.Lock(ctx)
		cancel()
		if err != nil {
			expect.Be(t, err, context.DeadlineExceeded, "Lock")
			continue
		}
		g.enter(t, lease.Fence(), 1)
		time.Sleep(rand.N(2 * time.Millisecond))
		g.leave()
		if err := lease.Unlock(t.Context()); err != nil && !errors.Is(err, distlock.ErrUnavailable) {
			t.Errorf("Unlock: %v", err)
		}
	}
}

func loseAcquires(ctx context.Context, r driver.Request, next acquirer) (driver.Grant, error) {
	switch rand.N(10) {
	case 0: // the request is lost
		return driver.Grant{}, errNetwork
	case 1: // the answer is lost
		next(ctx, r)
		return driver.Grant{}, errNetwork
	case 2: // the answer is late
		g, err := next(ctx, r)
		time.Sleep(rand.N(5 * time.Millisecond))
		return g, err
	}
	return next(ctx, r)
}

func loseReleases(ctx context.Context, h driver.Hold, next releaser) error {
	switch rand.N(10) {
	case 0:
		return errNetwork
	case 1:
		next(ctx, h)
		return errNetwork
	}
	return next(ctx, h)
}

// TestHammerTries: tries and waits on one lock, in real time for the race detector.
func TestHammerTries(t *testing.T) {
	c := client(t, memlock.New(), nil)
	var g guarded
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			m := c.Mutex("x")
			for range 200 {
				lock := m.Lock
				if i%2 == 0 {
					lock = m.TryLock
				}
				lease, err := lock(t.Context())
				if errors.Is(err, distlock.ErrHeld) {
					continue
				}
				if err != nil {
					t.Errorf("lock: %v", err)
					return
				}
				g.enter(t, lease.Fence(), 1)
				g.leave()
				mustUnlock(t, lease)
			}
		})
	}
	wg.Wait()
	free(t, c, "x")
}

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
			"re-entrant, another client":   {c.Mutex("m").Do, other.Mutex("m", distlock.Reentrant()).Do, "through the Client that took it"},
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
		expect.Be(t, err, distlock.ErrHeld, "a try, which does not wait")
		lease := mustLock(t, c.Mutex("m"))
		ctx := context.WithoutCancel(lease.Context())
		mustUnlock(t, lease)
		expect.OK(t, expect.Err(c.Mutex("m").Lock(ctx)), "after the outer lease has ended")
	})
}

// No lock is taken for a function that is nil.
func TestNothingToRun(t *testing.T) {
	r := newRig()
	c := client(t, r, nil)
	_, tryDo := c.Mutex("x").TryDo(t.Context(), nil)
	_, cron := c.Cron(t.Context(), "x", time.Minute, nil)
	for call, err := range map[string]error{
		"Mutex.Do": c.Mutex("x").Do(t.Context(), nil), "Mutex.TryDo": tryDo, "Cron": cron,
		"RWMutex.Do": c.RWMutex("x").Do(t.Context(), nil), "RWMutex.RDo": c.RWMutex("x").RDo(t.Context(), nil),
		"Semaphore.Do": c.Semaphore("x", 2).Do(t.Context(), nil), "Multi.Do": distlock.Multi(c.Mutex("x")).Do(t.Context(), nil),
		"Election.Lead": c.Election("x").Lead(t.Context(), nil),
	} {
		expect.Be(t, err, distlock.ErrInvalid, call)
	}
	expect.Equal(t, r.acquires.Load(), 0, "it reached the backend")
}
