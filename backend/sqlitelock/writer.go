package sqlitelock

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
)

// writer writes for a backend. SQLite has one writer per file, so calls that come while it works share the next transaction,
// and so its cost: a goroutine runs them. It also lets a call return when its context ends, whatever other processes and the
// disk do. A call that finds no other under way runs its transaction itself: two changes of goroutine cost more than a quarter
// of it. Jobs run in the order of the calls: an abandoned Acquire never lands after the Release that follows it.
type writer struct {
	calls atomic.Int32  // jobs without an answer
	turn  chan struct{} // has room for the goroutine that uses what follows
	alone bool          // calls may run by themselves: a commit does not wait for the disk

	conn        *sql.Conn
	stmts       statements
	clock       clock
	files       files
	stamped     int64 // when this backend last recorded its clock
	busyTimeout time.Duration
	notifier    *notifier
	sweep       sweeper
	commits     int // since the last checkpoint

	jobs chan *job
	life context.Context // ends with Close
	done chan struct{}   // closed when the writer has ended
	err  error           // of closing, then
}

// job is one call's share of a transaction. run may be called more than once. Its effects
// are committed once done receives the result.
type job struct {
	w      *writer
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

func (w *writer) newJob(ctx context.Context, single bool, run func(*tx) error) *job {
	w.calls.Add(1)
	return &job{w: w, ctx: ctx, run: run, single: single, start: time.Now(), done: make(chan error, 1)}
}

// answer ends a job.
func (j *job) answer(err error) {
	j.w.calls.Add(-1)
	j.done <- err
}

// do runs a job in a transaction, and waits for the result. An error of ctx means that the outcome is unknown.
func (w *writer) do(ctx context.Context, single bool, run func(*tx) error) error {
	j := w.newJob(ctx, single, run)
	if w.runAlone(j) {
		return <-j.done
	}
	return w.enqueue(j)
}

// runAlone runs a job on the caller's goroutine if no other call is under way, which may be an abandoned one of the same owner.
// It reports whether the job has its answer.
func (w *writer) runAlone(j *job) bool {
	if !w.alone || w.calls.Load() > 1 || j.ctx.Err() != nil {
		return false
	}
	select {
	case w.turn <- struct{}{}:
	default:
		return false
	}
	served := !w.isDue() && !isBusy(w.attempt([]*job{j}))
	<-w.turn // not if that panics: the transaction may still be open
	return served
}

// enqueue has the goroutine run a job, and waits for the result, or for the end of the job's context.
func (w *writer) enqueue(j *job) error {
	if err := j.ctx.Err(); err != nil {
		j.answer(err)
		return err
	}
	select {
	case w.jobs <- j:
	case <-w.life.Done():
		j.answer(driver.ErrClosed)
	case <-j.ctx.Done():
		j.answer(j.ctx.Err())
	}
	select {
	case err := <-j.done:
		return err
	case <-j.ctx.Done():
		return j.ctx.Err()
	}
}

// run serves jobs until the backend is closed. It keeps the turn then.
func (w *writer) run() {
	for {
		select {
		case <-w.life.Done():
			w.turn <- struct{}{}
			return
		case j := <-w.jobs:
			w.turn <- struct{}{}
			w.serve(w.gather([]*job{j}))
			w.checkpointSome()
			w.sweepSome()
			<-w.turn
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
			j.answer(fmt.Errorf("%w: %w", j.ctx.Err(), err))
		case time.Since(j.start) > w.busyTimeout:
			j.answer(tooBusy(w.busyTimeout, err))
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
			j.answer(err)
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
	w.commits++
	for i, j := range batch {
		j.answer(answers[i])
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

// checkpointEvery is how many commits make the goroutine write the WAL back to the database, which waits for the disk.
// SQLite does it by itself after 1000 pages, in the call that comes then: this is sooner, in a process with calls one by one.
const checkpointEvery = 300

// isDue reports whether the goroutine has something to do after the next call.
func (w *writer) isDue() bool { return w.commits >= checkpointEvery || w.sweep.added >= sweepEvery }

// checkpointSome makes a checkpoint when it is due. If another process is about to, it does what is left.
func (w *writer) checkpointSome() {
	if w.commits >= checkpointEvery {
		w.commits = 0
		_ = w.stmts.checkpoint.query(context.Background(), func([]sqldriver.Value) {})
	}
}

// sweepSome makes a step of the sweeper when it is due. If it fails, its rows wait for the next round.
func (w *writer) sweepSome() {
	if w.sweep.added < sweepEvery {
		return
	}
	w.sweep.added = 0
	j := w.newJob(w.life, false, func(t *tx) error {
		return w.sweep.step(t.statements, wallMicros()-w.sweep.idle.Microseconds(), t.clock.now())
	})
	if err := w.attempt([]*job{j}); err != nil {
		j.answer(err)
	}
}

// isUnknown reports whether err is an error and not one of the driver's facts.
func isUnknown(err error) bool {
	return err != nil && !driver.Final(err) && !errors.Is(err, driver.ErrHeld) && !errors.Is(err, driver.ErrLost)
}

func answer(batch []*job, err error) {
	for _, j := range batch {
		j.answer(err)
	}
}
