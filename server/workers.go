package server

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/internal/bounded"
)

// mostWorkers is how many goroutines are kept.
const mostWorkers = 256

// workers are goroutines that have made a call, and so have a stack that is large enough for the next one. To let it grow
// took a sixth of the server's time.
type workers struct {
	tasks chan task
	ended <-chan struct{} // none is kept for later then
	kept  atomic.Int32
}

type task interface{ run() }

// run runs a task.
func (w *workers) run(t task) {
	select {
	case w.tasks <- t:
	default:
		go w.work(t)
	}
}

func (w *workers) work(t task) {
	t.run()
	if w.kept.Add(1) > mostWorkers {
		w.kept.Add(-1)
		return
	}
	for {
		select {
		case t = <-w.tasks:
			t.run()
		case <-w.ended:
			return
		}
	}
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
