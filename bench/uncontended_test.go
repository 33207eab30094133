package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"
)

func uncontended(at string, goroutines int, among []contender, ratios ...string) scenario {
	return scenario{
		name:       at + "/uncontended/" + strconv.Itoa(goroutines),
		at:         at,
		title:      fmt.Sprintf("Uncontended: each of %d goroutines locks and unlocks its own name", goroutines),
		contenders: among,
		ratios:     ratios,
		measure: func(r *rig, c contender) (figures, error) {
			return measureUncontended(r, c, goroutines)
		},
	}
}

// turn bounds the time that a goroutine waits for its turn on coordinators that write to a disk. A
// measurement in which some goroutines had no turn would be meaningless.
const turn = 4 * time.Millisecond

var errStarved = errors.New("a goroutine with its own name never got the lock")

// patience bounds the repetitions of a measurement. On a busy machine some goroutines may have had no
// turn, and the next measurement takes four times as long.
const patience = time.Minute

func measureUncontended(r *rig, c contender, goroutines int) (figures, error) {
	cl, err := c.open(r.Addr(), ttl)
	if err != nil {
		return nil, err
	}
	defer cl.close()
	if _, err := pairs(cl, freshName(), goroutines, warmUp(r.time)); err != nil {
		return nil, err
	}
	for d := max(r.time, time.Duration(goroutines)*turn); ; d *= 4 {
		f, err := measurePairs(r, c, cl, goroutines, d)
		if !errors.Is(err, errStarved) || d > patience {
			return f, err
		}
	}
}

// measurePairs uses its own names, since the end of a run can leave locks behind.
func measurePairs(r *rig, c contender, cl client, goroutines int, d time.Duration) (figures, error) {
	name := freshName()
	if err := eachOnce(cl, name, goroutines); err != nil {
		return nil, err
	}
	before, err := r.usage(c)
	if err != nil {
		return nil, err
	}
	mine := cpu()
	t, err := pairs(cl, name, goroutines, d)
	if err != nil {
		return nil, err
	}
	mine = cpu() - mine
	if slices.Min(t.Each) == 0 {
		return nil, errStarved
	}
	after, err := r.usage(c)
	if err != nil {
		return nil, err
	}
	n := float64(t.total())
	return figures{
		{"pairs/s", t.rate()},
		{"p50-µs", micros(t.Times.quantile(.5))},
		{"p99-µs", micros(t.Times.quantile(.99))},
		{"client-µs/pair", micros(mine) / n},
		{"server-µs/pair", micros(after.cpu-before.cpu) / n},
		{"commands/pair", float64(after.sent-before.sent) / n},
	}, nil
}

// pairs has each goroutine lock and unlock its own name for d.
func pairs(cl client, name string, goroutines int, d time.Duration) (*tally, error) {
	return during(d, goroutines, func(ctx context.Context, g int, w *worker) error {
		m := cl.mutex(ownName(name, g))
		for !w.over() {
			start := time.Now()
			if err := pair(ctx, m); err != nil {
				return err
			}
			w.count(time.Since(start))
		}
		return nil
	})
}

func ownName(name string, goroutine int) string { return name + ":" + strconv.Itoa(goroutine) }

// eachOnce has all goroutines lock their own names at once. Later locks pay for no first use, such as
// an inserted row, and find open connections.
func eachOnce(cl client, name string, goroutines int) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	errs := make([]error, goroutines)
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() { errs[g] = pair(ctx, cl.mutex(ownName(name, g))) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func pair(ctx context.Context, m mutex) error {
	if err := m.lock(ctx); err != nil {
		return err
	}
	return m.unlock()
}

// warmUp returns the time for opening connections and loading scripts.
func warmUp(d time.Duration) time.Duration { return min(d/10, 100*time.Millisecond) }
