package sqlitelock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
)

// writer is the one goroutine of a backend that writes. SQLite has one writer per file, so
// calls that come while it works share the next transaction, and so its cost. The goroutine
// also lets a call return when its context ends, whatever the disk does. Jobs run in the
// order of the calls: an abandoned Acquire never lands after the Release that follows it.
type writer struct {
	conn        *sql.Conn
	stmts       statements
	clock       clock
	files       files
	stamped     int64 // when this backend last recorded its clock
	busyTimeout time.Duration
	notifier    *notifier
	sweep       sweeper

	jobs chan *job
	life context.Context // ends with Close
	done chan struct{}   // closed when the writer has ended
	err  error           // of closing, then
}

// job is one call's share of a transaction. run may be called more than once. Its effects
// are committed once done receives the result.
type job struct {
	ctx    context.Context
	run    func(*tx) error
	single bool // run is a single statement, which is a transaction by itself
	start  time.Time
	done   chan error
}

// tx is the transaction that jobs run in.
type tx struct {
	*statements
	clock clock
	added int // rows of locks

	freed  []string // names that may have become free, and have no queue
	queues []string // names that may have become free, and may have a queue
}

// The bounds of a batch, and of the pauses between tries at a busy file. SQLite's own busy
// handler sleeps up to 100 ms, and starves beside a process that writes fast.
const (
	maxBatch   = 128
	firstPause = 20 * time.Microsecond
	maxPause   = 2 * time.Millisecond
)

// do has the writer run a job, and waits for the result. An error of ctx means that the
// outcome is unknown.
func (w *writer) do(ctx context.Context, single bool, run func(*tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	j := &job{ctx: ctx, run: run, single: single, start: time.Now(), done: make(chan error, 1)}
	select {
	case w.jobs <- j:
	case <-w.life.Done():
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

// run serves jobs until the backend is closed.
func (w *writer) run() {
	for {
		select {
		case <-w.life.Done():
			return
		case j := <-w.jobs:
			w.serve(w.gather([]*job{j}))
			w.sweepSome()
		}
	}
}

// gather adds the jobs that are waiting.
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
	for try := 0; ; try++ {
		err := w.attempt(batch)
		if !isBusy(err) {
			return
		}
		if wait.Sleep(w.life, busyPause(try)) != nil {
			answer(batch, driver.ErrClosed)
			return
		}
		batch = w.gather(w.dismiss(batch, err))
		if len(batch) == 0 {
			return
		}
	}
}

func busyPause(try int) time.Duration { return wait.Jitter(wait.Backoff(try, firstPause, maxPause)) }

// dismiss answers the jobs that have waited long enough, and returns the others.
func (w *writer) dismiss(batch []*job, err error) []*job {
	return slices.DeleteFunc(batch, func(j *job) bool {
		switch {
		case j.ctx.Err() != nil:
			j.done <- fmt.Errorf("%w: %w", j.ctx.Err(), err)
		case time.Since(j.start) > w.busyTimeout:
			j.done <- tooBusy(w.busyTimeout, err)
		default:
			return false
		}
		return true
	})
}

func tooBusy(timeout time.Duration, err error) error {
	return fmt.Errorf("another process has been writing for %v: %w", timeout, err)
}

// attempt runs a batch and answers its jobs, unless the file is busy. If a batch fails,
// each job runs by itself, so that the others don't pay for one job's error.
func (w *writer) attempt(batch []*job) error {
	err := w.transact(batch)
	switch {
	case err == nil || isBusy(err):
		return err
	case len(batch) == 1:
		answer(batch, err)
		return nil
	}
	for _, j := range batch {
		// Serving the job before may have served later calls, such as the release of an abandoned Acquire.
		if err := j.ctx.Err(); err != nil {
			j.done <- err
			continue
		}
		w.serve([]*job{j})
	}
	return nil
}

// transact runs the jobs in one transaction, and answers them once it is committed. A fact
// that a job reports is its answer; any other error fails the batch.
func (w *writer) transact(batch []*job) error {
	if err := w.files.check(); err != nil {
		return err
	}
	t := &tx{statements: &w.stmts, clock: w.clock}
	bare := len(batch) == 1 && batch[0].single
	if !bare {
		if _, err := t.begin.exec(); err != nil {
			return err
		}
	}
	now := w.clock.now()
	stamp := !bare && now-w.stamped >= int64(stampEvery)
	if stamp {
		if _, err := t.stamp.exec(now, w.clock.boot); err != nil {
			return w.rollback(bare, err)
		}
	}
	answers := make([]error, len(batch))
	for i, j := range batch {
		if answers[i] = j.run(t); isUnknown(answers[i]) {
			return w.rollback(bare, answers[i])
		}
	}
	if !bare {
		if _, err := t.commit.exec(); err != nil {
			return w.rollback(bare, err)
		}
	}
	if stamp {
		w.stamped = now
	}
	t.admit()
	w.notifier.notify(t.freed, w.clock.now())
	w.sweep.added += t.added
	for i, j := range batch {
		j.done <- answers[i]
	}
	return nil
}

// admit adds the places that the queues let in to freed. It comes after the commit: if the queue has
// changed by then, that change does the same.
func (t *tx) admit() {
	for _, name := range t.queues {
		l, err := load(context.Background(), t.load, name, t.clock.boot, t.clock.now())
		if err != nil {
			continue // waiters retry by themselves
		}
		places, others := l.LetsIn()
		for _, p := range places {
			t.freed = append(t.freed, placeKey(name, p.Owner))
		}
		if others {
			t.freed = append(t.freed, name)
		}
	}
}

// placeKey identifies a place in the queue of a name for the notifier.
func placeKey(name, owner string) string { return name + "\x00" + owner }

func (w *writer) rollback(bare bool, err error) error {
	if !bare {
		// Some errors have ended the transaction already.
		_, _ = w.stmts.rollback.exec()
	}
	return err
}

// sweepSome makes a step of the sweeper when it is due. If it fails, its rows wait for the next round.
func (w *writer) sweepSome() {
	if w.sweep.added < sweepEvery {
		return
	}
	w.sweep.added = 0
	run := func(t *tx) error {
		return w.sweep.step(t.statements, wallMicros()-w.sweep.idle.Microseconds(), t.clock.now())
	}
	_ = w.transact([]*job{{run: run, done: make(chan error, 1)}})
}

// isUnknown reports whether err is an error and not one of the driver's facts.
func isUnknown(err error) bool {
	return err != nil && !driver.Final(err) && !errors.Is(err, driver.ErrHeld) && !errors.Is(err, driver.ErrLost)
}

func answer(batch []*job, err error) {
	for _, j := range batch {
		j.done <- err
	}
}
