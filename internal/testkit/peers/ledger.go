package peers

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// ledger is what the lock protects. It notices when two are inside, when an update is
// lost because two change its number at once, and when a fence is not greater than the
// last.
type ledger struct {
	inside, number  atomic.Int64
	visits, changes atomic.Int64 // changes: visits after one by another kind
	overlaps, stale atomic.Int64
	last            atomic.Value // string: the last visitor's kind
	fence           atomic.Uint64
}

func (l *ledger) visit(kind string, fence uint64) {
	if l.inside.Add(1) != 1 {
		l.overlaps.Add(1)
	}
	n := l.number.Load()
	if fence > 0 && l.fence.Swap(fence) >= fence {
		l.stale.Add(1)
	}
	time.Sleep(50 * time.Microsecond)
	l.number.Store(n + 1)
	if l.last.Swap(kind) != kind {
		l.changes.Add(1)
	}
	l.visits.Add(1)
	l.inside.Add(-1)
}

// Turns lets all take so many turns each on one lock, and expects that nobody meets
// anybody. They are named by their kinds.
func Turns(tb testing.TB, name string, turns int, sides map[string][]Side) {
	tb.Helper()
	var l ledger
	var wg sync.WaitGroup
	all := 0
	for kind, participants := range sides {
		for _, s := range participants {
			all += turns
			wg.Go(func() {
				if err := l.takeTurns(tb.Context(), s, kind, name, turns); err != nil {
					tb.Errorf("%s: %v", kind, err)
				}
			})
		}
	}
	wg.Wait()
	l.judge(tb, all)
}

func (l *ledger) takeTurns(ctx context.Context, s Side, kind, name string, turns int) error {
	for range turns {
		h, err := s.Lock(ctx, name)
		if err != nil {
			return err
		}
		l.visit(kind, h.Fence())
		if err := h.Unlock(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (l *ledger) judge(tb testing.TB, visits int) {
	tb.Helper()
	v, lost := l.visits.Load(), l.visits.Load()-l.number.Load()
	tb.Logf("%d visits, %d after one by another kind; %d overlaps, %d lost updates, %d fences too small",
		v, l.changes.Load(), l.overlaps.Load(), lost, l.stale.Load())
	if v != int64(visits) || l.overlaps.Load() != 0 || lost != 0 || l.stale.Load() != 0 {
		tb.Errorf("want %d visits, and none of what must not be", visits)
	}
	if l.changes.Load() < 2 {
		tb.Error("the sides did not take turns")
	}
}

// Crowd lets 16 goroutines take turns through one side, each with the lock for 2 ms, and
// returns how many were inside at once.
func Crowd(tb testing.TB, s Side, name string) (most int64) {
	tb.Helper()
	const goroutines, turns = 16, 10
	var inside, top atomic.Int64
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for range turns {
				h, err := s.Lock(tb.Context(), name)
				if err != nil {
					tb.Error(err)
					return
				}
				raise(&top, inside.Add(1))
				time.Sleep(2 * time.Millisecond)
				inside.Add(-1)
				if err := h.Unlock(tb.Context()); err != nil {
					tb.Error(err)
				}
			}
		})
	}
	wg.Wait()
	return top.Load()
}

func raise(most *atomic.Int64, n int64) {
	for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
	}
}
