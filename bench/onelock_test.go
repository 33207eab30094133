package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"
)

func oneLock(at string, goroutines int, among []contender) scenario {
	return scenario{
		name:       at + "/onelock/" + strconv.Itoa(goroutines),
		at:         at,
		title:      fmt.Sprintf("One lock, one process, %d goroutines, empty section", goroutines),
		contenders: among,
		measure: func(r *rig, c contender) (figures, error) {
			return measureOneLock(r, c, goroutines)
		},
	}
}

// fair is oneLock for waiters that queue at the coordinator, compared with waiters that don't.
func fair(at string, goroutines int, among []contender) scenario {
	s := oneLock(at, goroutines, among)
	s.name = at + "/fair/" + strconv.Itoa(goroutines)
	s.title = fmt.Sprintf("One lock, one process, %d goroutines, first come, first served", goroutines)
	return s
}

func measureOneLock(r *rig, c contender, goroutines int) (figures, error) {
	cl, err := c.open(r.Addr(), ttl)
	if err != nil {
		return nil, err
	}
	defer cl.close()
	if _, err := contend(cl, freshName(), goroutines, warmUp(r.time)); err != nil {
		return nil, err
	}
	before, err := r.usage(c)
	if err != nil {
		return nil, err
	}
	t, err := contend(cl, freshName(), goroutines, r.time)
	if err != nil {
		return nil, err
	}
	after, err := r.usage(c)
	if err != nil {
		return nil, err
	}
	return append(contention(t, after.sent-before.sent), figure{"max/min goroutine", spread(t.Each)}), nil
}

// contention returns the figures that all scenarios with one lock have in common.
func contention(t *tally, sent int64) figures {
	return figures{
		{"acq/s", t.rate()},
		{"p50-ms", millis(t.Times.quantile(.5))},
		{"p99-ms", millis(t.Times.quantile(.99))},
		{longest, millis(t.Times.Max)},
		{"commands/acq", float64(sent) / float64(t.total())},
	}
}

// contend has goroutines compete for one lock, and checks mutual exclusion and increasing fences. Waits
// that are unfinished at the end count for the longest wait, so that starvation shows.
func contend(cl client, name string, goroutines int, d time.Duration) (*tally, error) {
	var all guard
	return during(d, goroutines, func(ctx context.Context, _ int, w *worker) error {
		m := cl.mutex(name)
		for !w.over() {
			start := time.Now()
			if err := m.lock(ctx); err != nil {
				w.times.Max = max(w.times.Max, time.Since(start))
				return err
			}
			waited := time.Since(start)
			if err := all.enter(m); err != nil {
				return err
			}
			w.count(waited)
			all.leave()
			if err := m.unlock(); err != nil {
				return err
			}
		}
		return nil
	})
}

// guard is the resource that the lock protects.
type guard struct {
	inside atomic.Bool
	fence  atomic.Uint64
}

var (
	errTwo   = errors.New("two goroutines hold the lock at once")
	errFence = errors.New("a fence is not greater than the one before")
)

func (g *guard) enter(m mutex) error {
	if !g.inside.CompareAndSwap(false, true) {
		return errTwo
	}
	if f, ok := m.(fenced); ok {
		fence := f.fence()
		if last := g.fence.Swap(fence); fence <= last {
			return fmt.Errorf("%w: %d after %d", errFence, fence, last)
		}
	}
	return nil
}

func (g *guard) leave() { g.inside.Store(false) }
