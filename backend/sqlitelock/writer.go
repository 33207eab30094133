package sqlitelock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"github.com/distlock/distlock/driver"
)

// writer is the one goroutine of a backend that writes. SQLite has one writer per
// file: calls that come while it is at work share the next transaction, and so
// its price. It also lets every call return when its context ends, whatever the
// disk does; and since it works in the order of the calls, nothing of an abandoned
// Acquire lands after the Release that follows it.
type writer struct {
	conn     *sql.Conn
	stmts    *stmts
	clock    clock
	path     string
	file     os.FileInfo
	patience time.Duration
	bell     *bell

	jobs    chan *job
	closing <-chan struct{}
	done    chan struct{} // closed when the writer has ended
	err     error         // of closing, then

	sweep sweeper
}

// job is one call's share of a transaction. run may run more than once; what it
// did is true only when done says so.
type job struct {
	ctx    context.Context
	run    func(*tx) error
	single bool // run is a single statement, which is a transaction by itself
	start  time.Time
	done   chan error
}

// tx is the transaction that jobs run in.
type tx struct {
	*stmts
	clock clock
	fresh int      // rows added to locks
	freed []string // names that others may now get
}

// Bounds of a batch and of the pauses between looks at a busy file. SQLite's own
// busy handler sleeps up to 100 ms, which starves processes that meet a fast one.
const (
	maxBatch   = 128
	firstPause = 20 * time.Microsecond
	maxPause   = 2 * time.Millisecond
)

// do has the writer run a job, and waits for its outcome. An error of ctx says that
// the outcome is unknown.
func (w *writer) do(ctx context.Context, single bool, run func(*tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	j := &job{ctx: ctx, run: run, single: single, start: time.Now(), done: make(chan error, 1)}
	select {
	case w.jobs <- j:
	case <-w.closing:
		return driver.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-j.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run serves jobs until the backend is closed, then shuts it.
func (w *writer) run(shut func() error) {
	defer func() {
		w.err = shut()
		close(w.done)
	}()
	for {
		select {
		case <-w.closing:
			return
		case j := <-w.jobs:
			w.serve(w.gather([]*job{j}))
			w.tidy()
		}
	}
}

func jitter(pause time.Duration) time.Duration { return pause/2 + rand.N(pause) }

func tooBusy(patience time.Duration, err error) error {
	return fmt.Errorf("another process has been writing for %v: %w", patience, err)
}

// gather adds the jobs that wait to be taken.
func (w *writer) gather(batch []*job) []*job {
	for len(batch) < maxBatch {
		select {
		case j := <-w.jobs:
			batch = append(batch, j)
		default:
			return batch
		}
	}
	return batch
}

// serve runs a batch as soon as no other process writes.
func (w *writer) serve(batch []*job) {
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		err := w.attempt(batch)
		if !busy(err) {
			return
		}
		select {
		case <-w.closing:
			answer(batch, driver.ErrClosed)
			return
		case <-time.After(jitter(pause)):
		}
		batch = w.gather(w.dismiss(batch, err))
		if len(batch) == 0 {
			return
		}
	}
}

// dismiss answers the jobs that have waited long enough, and returns the others.
func (w *writer) dismiss(batch []*job, err error) []*job {
	return slices.DeleteFunc(batch, func(j *job) bool {
		switch {
		case j.ctx.Err() != nil:
			j.done <- fmt.Errorf("%w: %w", j.ctx.Err(), err)
		case time.Since(j.start) > w.patience:
			j.done <- tooBusy(w.patience, err)
		default:
			return false
		}
		return true
	})
}

// attempt runs a batch and answers its jobs, unless the file is busy. When a batch
// fails each job is run by itself, so that none pays for another's error.
func (w *writer) attempt(batch []*job) error {
	if err := w.checkFile(); err != nil {
		answer(batch, err)
		return nil
	}
	err := w.transact(batch)
	switch {
	case err == nil || busy(err):
		return err
	case len(batch) == 1:
		answer(batch, err)
		return nil
	}
	for _, j := range batch {
		w.serve([]*job{j})
	}
	return nil
}

// checkFile finds out that somebody removed or replaced the file: whoever opens
// the path now doesn't see our locks.
func (w *writer) checkFile() error {
	now, err := os.Stat(w.path)
	if err != nil {
		return fmt.Errorf("the lock file is gone: %w", err)
	}
	if !os.SameFile(now, w.file) {
		return fmt.Errorf("the lock file %s was replaced by another one: open it anew", w.path)
	}
	return nil
}

// transact runs the jobs in one transaction and answers them if it was committed.
// A job's refusal is its answer; its failure fails the batch.
func (w *writer) transact(batch []*job) error {
	t := &tx{stmts: w.stmts, clock: w.clock}
	alone := len(batch) == 1 && batch[0].single
	if !alone {
		if err := t.exec(t.begin); err != nil {
			return err
		}
	}
	answers := make([]error, len(batch))
	for i, j := range batch {
		if answers[i] = j.run(t); failed(answers[i]) {
			return w.rollback(alone, answers[i])
		}
	}
	if !alone {
		if err := t.exec(t.commit); err != nil {
			return w.rollback(alone, err)
		}
	}
	w.bell.ring(t.freed, w.clock.now())
	w.sweep.credit += t.fresh
	for i, j := range batch {
		j.done <- answers[i]
	}
	return nil
}

func (w *writer) rollback(alone bool, err error) error {
	if !alone {
		// Some errors have ended the transaction already; then this one fails.
		_ = w.stmts.exec(w.stmts.rollback)
	}
	return err
}

// failed tells the failures of a job from the facts that it reports.
func failed(err error) bool {
	return err != nil && !driver.Final(err) && !errors.Is(err, driver.ErrHeld) && !errors.Is(err, driver.ErrLost)
}

func answer(batch []*job, err error) {
	for _, j := range batch {
		j.done <- err
	}
}
