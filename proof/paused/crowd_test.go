package paused

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/distlock/distlock/fence"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// started returns a store with n in it.
func started(t *testing.T, k kind, n int) store {
	t.Helper()
	_, dataURL := k.start(t)
	s, err := k.open(dataURL)
	if err == nil {
		err = s.write(t.Context(), n, 0)
	}
	must.OK(t, err)
	return s
}

// Many goroutines read and then write the number plus one, each under its own fence. Some are rightful
// holders, one after the other. Others have been overtaken by these. Now and then a goroutine overtakes
// a rightful holder midway. No update is lost, and no guard accepts a smaller fence after a greater
// one.
func TestCrowd(t *testing.T) {
	const goroutines, rounds = 16, 10
	for storeKind, k := range kinds {
		t.Run(storeKind, func(t *testing.T) {
			t.Parallel()
			c := crowd{store: started(t, k, 0)}
			var wg sync.WaitGroup
			for range goroutines {
				wg.Go(func() {
					for range rounds {
						c.addOne(t)
					}
				})
			}
			wg.Wait()
			c.judge(t)
		})
	}
}

type crowd struct {
	store
	lock         sync.Mutex // serializes the rightful holders
	turns, given atomic.Int64
	added, stale atomic.Int64
	greatest     atomic.Uint64 // the greatest fence accepted
}

// next returns a new fence, the greatest so far.
func (c *crowd) next() int64 { return 1<<53 + 1000*c.given.Add(1) }

func (c *crowd) addOne(t *testing.T) {
	f := c.next()
	switch turn := c.turns.Add(1); {
	case turn%64 == 0: // overtakes
	case turn%8 == 1: // rightful
		c.lock.Lock()
		defer c.lock.Unlock()
		f = c.next()
	default: // overtaken, by one or by many
		f -= 1000*rand.Int64N(turn) + turn // differs from all others
	}
	err := c.addUnder(t, uint64(f))
	switch {
	case errors.Is(err, fence.ErrStale):
		c.stale.Add(1)
	case err != nil:
		t.Error(err)
	default:
		c.added.Add(1)
	}
}

func (c *crowd) addUnder(t *testing.T, f uint64) error {
	before := c.greatest.Load()
	n, err := c.read(t.Context(), f)
	c.letIn(t, f, before, err)
	if err != nil {
		return err
	}
	before = c.greatest.Load()
	err = c.write(t.Context(), n+1, f)
	c.letIn(t, f, before, err)
	return err
}

// letIn checks that no fence is accepted after a greater one.
func (c *crowd) letIn(t *testing.T, f, before uint64, err error) {
	if err != nil {
		return
	}
	if f < before {
		t.Errorf("%d was accepted after %d", f, before)
	}
	for old := before; f > old && !c.greatest.CompareAndSwap(old, f); old = c.greatest.Load() {
	}
}

func (c *crowd) judge(t *testing.T) {
	n, err := c.read(t.Context(), 0)
	t.Logf("%d were accepted, %d refused", c.added.Load(), c.stale.Load())
	if err != nil || int64(n) != c.added.Load() || c.added.Load() < 5 || c.stale.Load() < 5 {
		t.Errorf("%d are left of %d, %v", n, c.added.Load(), err)
	}
	greatest := c.greatest.Load()
	if _, err := c.read(t.Context(), greatest-1); !errors.Is(err, fence.ErrStale) {
		t.Errorf("%d is accepted after %d: %v", greatest-1, greatest, err)
	}
	expect.OK(t, expect.Err(c.read(t.Context(), greatest)), greatest, "is not accepted again")
}

// A fence on the write only is too late. The old holder's write arrives between its successor's read
// and write.
func TestFenceOnWritesOnlyLosesAnUpdate(t *testing.T) {
	for storeKind, k := range kinds {
		t.Run(storeKind, func(t *testing.T) {
			t.Parallel()
			for _, c := range []struct {
				fenceReads bool
				left       int
			}{{false, 90}, {true, 89}} {
				if left := overlap(t, started(t, k, 100), c.fenceReads); left != c.left {
					t.Errorf("fence with reads %v: %d are left, want %d", c.fenceReads, left, c.left)
				}
			}
		})
	}
}

// overlap has a holder sell one, and its successor ten. The first one writes between its successor's
// read and write. A refused writer starts again, under a new fence.
func overlap(t *testing.T, s store, fenceReads bool) (left int) {
	t.Helper()
	ctx := t.Context()
	read := func(f uint64) int {
		if !fenceReads {
			f = 0
		}
		n := must.Get(s.read(ctx, f))(t)
		return n
	}
	write := func(n int, f uint64) bool {
		err := s.write(ctx, n, f)
		if err != nil && !errors.Is(err, fence.ErrStale) {
			t.Fatal(err)
		}
		return err == nil
	}
	old := read(33)
	successor := read(34)
	sold := write(old-1, 33)
	if !write(successor-10, 34) {
		t.Error("the successor was refused")
	}
	if !sold {
		write(read(35)-1, 35)
	}
	left = must.Get(s.read(ctx, 0))(t)
	return left
}
