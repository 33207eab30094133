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
	"github.com/distlock/distlock/internal/engine"
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
	known       map[string]engine.Kept

	jobs chan *job
	life context.Context // ends with Close
	done chan struct{}   // closed when the writer has ended
	err  error           // of closing, then
}

// job is one call's share of a transaction. run may be called more than once. Its effects
// are committed once done receives the result.
type job struct {
	w     *writer
	ctx   context.Context
	run   func(j *job) error
	start time.Time
	done  chan error
	lone  bool // it writes with one statement, outside of a transaction

	added int      // rows of locks
	wake  []string // keys of the notifier
}

// The bounds of a batch, and of the pauses between tries at a busy file. SQLite's own busy
// handler sleeps up to 100 ms, and starves beside a process that writes fast.
const (
	maxBatch   = 128
	firstPause = 20 * time.Microsecond
	maxPause   = 2 * time.Millisecond
)

func (w *writer) newJob(ctx context.Context, run func(*job) error) *job {
	w.calls.Add(1)
	return &job{w: w, ctx: ctx, run: run, start: time.Now(), done: make(chan error, 1)}
}

// answer ends a job.
func (j *job) answer(err error) {
	j.w.calls.Add(-1)
	j.done <- err
}

// do runs a job in a transaction, and waits for the result. An error of ctx that is not ErrUnsent means that the outcome is
// unknown: the job may still run.
func (w *writer) do(ctx context.Context, run func(*job) error) error {
	return w.await(w.newJob(ctx, run))
}

// await waits for the result of a job, as do does.
func (w *writer) await(j *job) error {
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
	select {
	case w.jobs <- j:
	case <-w.life.Done():
		j.answer(driver.ErrClosed)
	case <-j.ctx.Done():
		j.answer(driver.Unsent(j.ctx.Err()))
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
			j.answer(driver.Unsent(fmt.Errorf("%w: %w", j.ctx.Err(), err)))
		case time.Since(j.start) > w.busyTimeout:
			j.answer(tooBusy(w.busyTimeout, err))
		default:
			return false
		}
		return true
	})
}

func tooBusy(timeout time.Duration, err error) error {
	return driver.Unsent(fmt.Errorf("another process has been writing for %v: %w", timeout, err))
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
			j.answer(driver.Unsent(err))
			continue
		}
		w.serve([]*job{j})
	}
	return nil
}

// transact runs the jobs in one transaction, or a lone one with one statement, and answers them once they are committed. An error of one fails them all.
func (w *writer) transact(batch []*job) error {
	if err := w.files.check(); err != nil {
		return err
	}
	if err := w.write(batch); err != nil {
		return err
	}
	w.commits++
	for _, j := range batch {
		w.notifier.notify(j.wake, w.clock.now())
		w.sweep.added += j.added
		j.answer(nil)
	}
	return nil
}

// write runs the jobs, and commits. A lone job reads and writes by itself if no other process writes in between: a process that is
// stopped within a transaction keeps the others from the file until it goes on.
func (w *writer) write(batch []*job) error {
	now := w.clock.now()
	stamp := now-w.stamped >= int64(stampEvery)
	if one := batch[0]; one.lone && len(batch) == 1 && !stamp {
		err := one.again()
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, errNotAlone):
			w.known = nil
			return err
		}
	}
	for _, j := range batch {
		j.lone = false
	}
	if _, err := w.stmts.begin.exec(); err != nil {
		return err
	}
	if err := w.runAll(batch, stamp, now); err != nil {
		// Some errors have ended the transaction already.
		_, _ = w.stmts.rollback.exec()
		w.known = nil
		return err
	}
	if stamp {
		w.stamped = now
	}
	return nil
}

// errNotAlone says that a job needs a transaction.
var errNotAlone = errors.New("the row is new, or another process has changed it")

// again runs the job, also after an attempt that wrote nothing.
func (j *job) again() error {
	j.added, j.wake = 0, nil
	return j.run(j)
}

func (w *writer) runAll(batch []*job, stamp bool, now int64) error {
	if stamp {
		if _, err := w.stmts.stamp.exec(now, w.clock.boot); err != nil {
			return err
		}
	}
	for _, j := range batch {
		if err := j.again(); err != nil {
			return err
		}
	}
	_, err := w.stmts.commit.exec()
	return err
}

// maxKnown bounds what is remembered, so that a change of what nobody else has changed does not read.
const maxKnown = 4096

func (w *writer) know(name string, k engine.Kept) {
	if w.known == nil || len(w.known) >= maxKnown {
		w.known = map[string]engine.Kept{}
	}
	w.known[name] = k
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
		_ = w.stmts.checkpoint.query(func([]sqldriver.Value) {})
	}
}

// sweepSome makes a step of the sweeper when it is due. If it fails, its rows wait for the next round.
func (w *writer) sweepSome() {
	if w.sweep.added < sweepEvery {
		return
	}
	w.sweep.added = 0
	j := w.newJob(w.life, func(*job) error {
		now := w.clock.micros()
		return w.sweep.step(&w.stmts, now-w.sweep.idle.Microseconds(), now)
	})
	if err := w.attempt([]*job{j}); err != nil {
		j.answer(err)
	}
}

func answer(batch []*job, err error) {
	for _, j := range batch {
		j.answer(err)
	}
}
