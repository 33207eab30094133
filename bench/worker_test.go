package bench

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// worker is the state of one goroutine in a run of fixed duration.
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

// during runs f in several goroutines for d, and then cancels their contexts. Each goroutine has its
// own cancellable context, like a request to a server. An error ends the run, unless the end of the run
// caused it.
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
