package server

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/internal/bounded"
)

// mostWorkers is how many goroutines are kept.
const mostWorkers = 256

// workers are goroutines that have made a call, and so have a stack that is large enough for the next one. To let it grow
// took a sixth of the server's time. The zero value is ready, and safe for concurrent use.
type workers struct {
	mu    sync.Mutex
	idle  []chan task // the last one's stack is likely in the processor's cache
	ended bool        // none is kept for later
}

type task interface{ run() }

// run runs a task.
func (w *workers) run(t task) {
	w.mu.Lock()
	last := len(w.idle) - 1
	if last < 0 {
		w.mu.Unlock()
		go w.work(t)
		return
	}
	worker := w.idle[last]
	w.idle = w.idle[:last]
	w.mu.Unlock()
	worker <- t
}

func (w *workers) work(t task) {
	tasks := make(chan task, 1)
	for ok := true; ok; t, ok = <-tasks {
		t.run()
		if !w.keep(tasks) {
			return
		}
	}
}

// keep keeps a worker that is idle, if there is room.
func (w *workers) keep(worker chan task) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended || len(w.idle) == mostWorkers {
		return false
	}
	w.idle = append(w.idle, worker)
	return true
}

// end ends the workers that are idle, and each other one after its task.
func (w *workers) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	for _, worker := range w.idle {
		close(worker)
	}
	w.idle = nil
}

// callLimit is the end of the calls of the backend that begin at about the same time. The zero value is ready, and safe for
// concurrent use.
type callLimit struct{ last atomic.Pointer[limitContext] }

// limitContext is for calls that begin before an instant.
type limitContext struct {
	context.Context
	before time.Time
}

// within returns the context of a call, which ends with ctx or after callTimeout. The caller calls End.
func (l *callLimit) within(ctx context.Context) *bounded.Context {
	last := l.last.Load()
	if now := time.Now(); last == nil || !now.Before(last.before) {
		const share = callTimeout / 10
		limit, cancel := context.WithTimeout(context.Background(), callTimeout+share)
		context.AfterFunc(limit, cancel)
		last = &limitContext{limit, now.Add(share)}
		l.last.Store(last)
	}
	return bounded.New(ctx, last)
}
