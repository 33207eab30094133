package distlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
)

func TestTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		c := client(t, r, nil)
		lease, err := distlock.Multi(c.Mutex("b"), c.RWMutex("c"), c.Semaphore("a", 2)).TryLock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if all, single := r.alls.Load(), r.acquires.Load(); all != 1 || single != 0 {
			t.Errorf("%d attempts together and %d alone; want 1 and none", all, single)
		}
		time.Sleep(10 * time.Minute)
		ctx := lease.Context()
		for i, l := range lease.Leases() {
			if l.Name() != []string{"a", "b", "c"}[i] || l.Err() != nil || distlock.FenceOf(ctx, l.Name()) != l.Fence() {
				t.Errorf("lease %d: %s, %v, fence %d", i, l.Name(), l.Err(), distlock.FenceOf(ctx, l.Name()))
			}
		}
		if r.renews.Load() == 0 {
			t.Error("nothing was renewed")
		}
		mustUnlock(t, lease.Leases()[0])
		if ctx.Err() == nil {
			t.Error("the context of all outlives one of them")
		}
		mustUnlock(t, lease)
		for _, name := range []string{"a", "b", "c"} {
			free(t, c, name)
		}
	})
}

// If one is held nothing is taken, and the error names it.
func TestTogetherRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		r := &rig{Backend: store.Connect()}
		c, other := client(t, r, nil), client(t, store.Connect(), nil)
		held := mustLock(t, other.Mutex("b"))
		_, err := distlock.Multi(c.Mutex("a"), c.Mutex("b"), c.Mutex("c")).TryLock(t.Context())
		var e *distlock.Error
		if !errors.Is(err, distlock.ErrHeld) || !errors.As(err, &e) || e.Name != "b" || e.Op != "trylock" {
			t.Errorf("TryLock: %v, want ErrHeld of b", err)
		}
		synctest.Wait()
		if r.releases.Load() > 0 {
			t.Error("what was not taken was released")
		}
		for _, name := range []string{"a", "c"} {
			free(t, other, name)
		}
		mustUnlock(t, held)
	})
}

// What can't be taken in one step is taken one after the other.
func TestNotTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		c, other := client(t, r, nil), client(t, memlock.New(), nil)
		m := c.Mutex("a", distlock.Reentrant())
		outer := mustLock(t, m)
		for what, test := range map[string]struct {
			ctx   context.Context
			locks []distlock.Locker
			skip  bool
		}{
			"two clients":            {t.Context(), []distlock.Locker{c.Mutex("1"), other.Mutex("2")}, false},
			"one lock":               {t.Context(), []distlock.Locker{c.Mutex("1")}, false},
			"re-entry":               {outer.Context(), []distlock.Locker{m, c.Mutex("2")}, false},
			"a backend that does no": {t.Context(), []distlock.Locker{c.Mutex("1"), c.Mutex("2")}, true},
		} {
			r.set(func(r *rig) {
				r.all = func(context.Context, []driver.Request, allAcquirer) ([]driver.Grant, error) {
					if !test.skip {
						t.Errorf("%s: asked for all at once", what)
					}
					return nil, driver.ErrSkip
				}
			})
			lease, err := distlock.Multi(test.locks...).TryLock(test.ctx)
			if err != nil {
				t.Errorf("%s: %v", what, err)
				continue
			}
			mustUnlock(t, lease)
		}
		mustUnlock(t, outer)
		free(t, c, "a")
	})
}

// What is known in this process is refused by it.
func TestTogetherWhileHeldHere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		c := client(t, r, nil)
		held := mustLock(t, c.Mutex("b"))
		both := distlock.Multi(c.Mutex("a"), c.Mutex("b"))
		var e *distlock.Error
		if _, err := both.TryLock(t.Context()); !errors.Is(err, distlock.ErrHeld) || !errors.As(err, &e) || e.Name != "b" {
			t.Errorf("TryLock: %v, want ErrHeld of b", err)
		}
		if r.alls.Load() != 0 {
			t.Error("the backend was asked")
		}
		mustUnlock(t, held)
		lease, err := both.TryLock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Mutex("a").TryLock(t.Context()); !errors.Is(err, distlock.ErrHeld) {
			t.Errorf("TryLock of one of them: %v", err)
		}
		next := waiter(t, t.Context(), c.Mutex("a"))
		mustUnlock(t, lease)
		mustUnlock(t, <-next)
	})
}

// What may have been taken is released until that is answered.
func TestTogetherWithoutAnAnswer(t *testing.T) {
	late := func(d time.Duration) func(context.Context) error {
		return func(context.Context) error { time.Sleep(d); return nil }
	}
	for what, test := range map[string]struct {
		answer func(context.Context) error
		want   error
	}{
		"no answer": {func(context.Context) error { return errNetwork }, distlock.ErrUnavailable},
		"timeout":   {func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, distlock.ErrUnavailable},
		"late":      {late(ttl), distlock.ErrUnavailable},
		"gone":      {late(2 * time.Second), context.DeadlineExceeded},
		"short":     {nil, distlock.ErrUnavailable},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig()
				c := client(t, r, nil)
				r.all = func(ctx context.Context, rs []driver.Request, next allAcquirer) ([]driver.Grant, error) {
					grants, err := next(ctx, rs)
					if test.answer == nil {
						return grants[:1], err
					}
					if err := test.answer(ctx); err != nil {
						return nil, err
					}
					return grants, err
				}
				r.release = func(ctx context.Context, h driver.Hold, next releaser) error {
					if r.releases.Load() < 6 {
						return errNetwork
					}
					return next(ctx, h)
				}
				ctx, cancel := t.Context(), func() {}
				if what == "gone" {
					ctx, cancel = context.WithTimeout(ctx, time.Second)
				}
				defer cancel()
				_, err := distlock.Multi(c.Mutex("a"), c.Mutex("b")).TryLock(ctx)
				if !errors.Is(err, test.want) {
					t.Errorf("TryLock: %v, want %v", err, test.want)
				}
				time.Sleep(10 * time.Second)
				free(t, c, "a")
				free(t, c, "b")
				lease, err := distlock.Multi(c.Semaphore("a", 1)).TryLock(t.Context())
				if err != nil {
					t.Fatalf("afterwards: %v", err)
				}
				mustUnlock(t, lease)
			})
		})
	}
}

func TestTogetherRefusesNonsense(t *testing.T) {
	r := newRig()
	c := client(t, r, nil)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for what, test := range map[string]struct {
		ctx  context.Context
		lock distlock.Locker
		want error
	}{
		"a bad lock":      {t.Context(), c.Mutex(""), distlock.ErrInvalid},
		"an ended wait":   {ended, c.Mutex("b"), context.Canceled},
		"two of one name": {t.Context(), c.Mutex("a"), distlock.ErrInvalid},
	} {
		if _, err := distlock.Multi(c.Mutex("a"), test.lock).TryLock(test.ctx); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", what, err, test.want)
		}
	}
	if n := r.alls.Load(); n > 0 {
		t.Errorf("the backend was asked %d times", n)
	}
	r.all = func(context.Context, []driver.Request, allAcquirer) ([]driver.Grant, error) {
		return nil, fmt.Errorf("%w: of another kind", driver.ErrInvalid)
	}
	if _, err := distlock.Multi(c.Mutex("a"), c.Mutex("b")).TryLock(t.Context()); !errors.Is(err, distlock.ErrInvalid) {
		t.Errorf("a name of another kind: %v", err)
	}
	if n := r.releases.Load(); n > 0 {
		t.Errorf("%d releases of what was never taken", n)
	}
}

// Close ends what is on its way.
func TestTogetherDuringClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		r := &rig{Backend: store.Connect()}
		other := client(t, store.Connect(), nil)
		c, err := distlock.New(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.all = func(ctx context.Context, rs []driver.Request, next allAcquirer) ([]driver.Grant, error) {
			grants, err := next(ctx, rs)
			time.Sleep(time.Second)
			return grants, err
		}
		errs := make(chan error)
		go func() {
			_, err := distlock.Multi(c.Mutex("a"), c.Mutex("b")).TryLock(context.Background())
			errs <- err
		}()
		synctest.Wait()
		go func() { errs <- c.Close() }()
		if err := errors.Join(<-errs, <-errs); !errors.Is(err, distlock.ErrClosed) {
			t.Errorf("TryLock and Close: %v", err)
		}
		free(t, other, "a")
		free(t, other, "b")
	})
}

// Who tries for several locks at once has all or none.
func TestTogetherUnderLoad(t *testing.T) {
	store := memlock.NewStore()
	clients := []*distlock.Client{client(t, store.Connect(), nil), client(t, store.Connect(), nil)}
	var holders [3]atomic.Int32
	var won atomic.Int32
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			c := clients[i%2]
			one, two := i%3, (i+1)%3
			both := distlock.Multi(c.Mutex(fmt.Sprint(one)), c.Mutex(fmt.Sprint(two)))
			for range 300 {
				lease, err := both.TryLock(t.Context())
				if err != nil {
					if !errors.Is(err, distlock.ErrHeld) {
						t.Error(err)
					}
					continue
				}
				won.Add(1)
				if holders[one].Add(1) != 1 || holders[two].Add(1) != 1 {
					t.Error("two holders")
				}
				holders[one].Add(-1)
				holders[two].Add(-1)
				mustUnlock(t, lease)
			}
		})
	}
	wg.Wait()
	if won.Load() == 0 {
		t.Error("nobody ever won")
	}
}
