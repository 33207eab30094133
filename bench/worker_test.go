package bench

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// worker is one goroutine's part in a run of fixed time.
type worker struct {
	end   *atomic.Bool
	n     int64
	times histogram
}

func (w *worker) over() bool { return w.end.Load() }

func (w *worker) count(d time.Duration) {
	w.n++
	w.times.add(d)
}

// during runs f in so many goroutines for d, and then ends their contexts. Each has
// one of its own that can be cancelled, as requests to a server have. An error of one
// ends the run, unless it came of the end.
func during(d time.Duration, goroutines int, f func(ctx context.Context, g int, w *worker) error) (*tally, error) {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var end atomic.Bool
	var wg sync.WaitGroup
	failed := make(chan error, goroutines)
	workers := make([]worker, goroutines)
	start := time.Now()
	for g := range workers {
		w := &workers[g]
		w.end = &end
		wg.Go(func() {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			if err := f(ctx, g, w); err != nil && !end.Load() {
				failed <- fmt.Errorf("goroutine %d: %w", g, err)
			}
		})
	}
	var err error
	select {
	case <-time.After(d):
	case err = <-failed:
	}
	end.Store(true)
	t := &tally{Elapsed: time.Since(start)}
	stop()
	wg.Wait()
	for i := range workers {
		t.Each = append(t.Each, workers[i].n)
		t.Times.merge(&workers[i].times)
	}
	return t, err
}
