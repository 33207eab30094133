package connlock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
)

// queueWait waits in the server's queue, on a link of its own.
type queueWait struct {
	b     *Backend
	lock  Lock
	lease time.Duration
	ready chan struct{} // holds a signal that was not taken yet

	closing context.Context
	close   context.CancelFunc
	forced  context.Context // to end, though nobody answers
	force   context.CancelFunc
	done    chan struct{} // closed when it takes nothing more
	conn    *lockConn     // which it has, or nil; for run alone

	mu      sync.Mutex
	waiting Conn // in a statement that may be cancelled, or nil
}

// Watch waits natively, and takes the lock for r's Owner. ErrSkip if too many wait already,
// or if the pool has no connection to spare for it.
func (b *Backend) Watch(ctx context.Context, r driver.Request) (driver.Watch, error) {
	if err := b.validate(r.Hold); err != nil {
		return driver.Watch{}, err
	}
	if err := ctx.Err(); err != nil {
		return driver.Watch{}, b.wrapError("watch", r.Name, err)
	}
	if !b.reserveWait() {
		return driver.Watch{}, driver.ErrSkip
	}
	w := &queueWait{b: b, lock: b.lockOf(r), lease: leaseClass(r.TTL), ready: make(chan struct{}, 1), done: make(chan struct{})}
	w.closing, w.close = context.WithCancel(b.life)
	w.forced, w.force = context.WithCancel(b.life)
	own, end := b.bounded(ctx)
	defer end()
	if err := w.connect(own); err != nil {
		b.endWait()
		w.close()
		w.force()
		return driver.Watch{}, b.wrapError("watch", r.Name, err)
	}
	if !b.goTask(w.run) {
		return driver.Watch{}, driver.ErrClosed
	}
	return driver.Watch{Ready: w.ready, Close: w.stop}, nil
}

// reserveWait counts a waiter, if there is room for one. Half of a limited pool is for waiters,
// at most.
func (b *Backend) reserveWait() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	most := maxWaiting
	if limit := b.DB.Stats().MaxOpenConnections; limit > 0 {
		most = min(most, (limit-1)/2)
	}
	if b.waiting >= most {
		return false
	}
	b.waiting++
	return true
}

func (b *Backend) endWait() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting--
}

// connect finds a link to wait on.
func (w *queueWait) connect(ctx context.Context) error {
	b := w.b
	b.mu.Lock()
	s := b.takeIdle(w.lease)
	b.mu.Unlock()
	if s == nil {
		var err error
		if s, err = b.openConn(ctx, w.lease); err != nil {
			return err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s.attempts++
	w.conn = s
	return nil
}

// run waits until it has the lock or is closed.
func (w *queueWait) run() {
	defer close(w.done)
	defer w.b.endWait()
	defer w.close()
	defer w.force()
	for w.closing.Err() == nil {
		if w.conn == nil && w.connect(w.closing) != nil {
			w.signal() // who waits may do better by itself
			w.pause()
			continue
		}
		got, err := w.wait()
		if got || err != nil || w.closing.Err() != nil {
			w.disconnect()
		}
		switch {
		case got:
			w.signal()
			return
		case err != nil && w.closing.Err() == nil:
			w.signal()
			w.pause()
		}
	}
	if w.conn != nil {
		w.disconnect()
	}
}

// disconnect leaves its link.
func (w *queueWait) disconnect() {
	w.b.endAttempt(w.conn)
	w.conn = nil
}

// wait waits for a slice.
func (w *queueWait) wait() (got bool, err error) {
	s := w.conn
	err = s.doFor(w.closing, waitSlice+cleanupTime, func(own context.Context) error {
		own, cancel := context.WithCancel(own)
		defer cancel()
		defer context.AfterFunc(w.forced, cancel)()
		w.setWaiting(s.conn)
		ok, err := s.conn.WaitLock(own, w.lock, waitSlice)
		w.setWaiting(nil)
		switch {
		case err != nil:
			s.undo(w.lock, err)
			return err
		case ok && !w.granted(s):
			s.undo(w.lock, errors.New("it was not needed"))
		case ok:
			got = true
		}
		return nil
	})
	return got, err
}

// granted enters what the wait has brought, unless the Owner has it already. The lock
// is this link's: a hold of this process that should be in the way is none any more.
func (w *queueWait) granted(s *lockConn) bool {
	b := w.b
	b.mu.Lock()
	if b.byOwner[w.lock.Owner] != nil || b.closed {
		b.mu.Unlock()
		return false
	}
	stale := b.byKey[w.lock.Key]
	if stale != nil {
		b.removeHold(stale)
	}
	b.enterHold(s, w.lock, nil)
	b.share(s)
	b.mu.Unlock()
	if stale != nil {
		stale.notifyLost()
	}
	return true
}

func (w *queueWait) signal() {
	select {
	case w.ready <- struct{}{}:
	default:
	}
}

// pause is after what did not work.
func (w *queueWait) pause() {
	select {
	case <-w.closing.Done():
	case <-time.After(200 * time.Millisecond):
	}
}

// stop cancels the wait, and returns when nothing more is taken: it is cancelled until
// that is answered, since one that comes too early hits nothing.
func (w *queueWait) stop() {
	w.close()
	ctx, cancel := context.WithTimeout(w.b.life, cleanupTime)
	defer cancel()
	for ctx.Err() == nil && !w.doneWithin(time.Millisecond) {
		w.cancel(ctx)
		if w.doneWithin(20 * time.Millisecond) {
			return
		}
	}
	w.endByForce()
}

// setWaiting notes the link on which it waits. It returns when no cancellation is under way any
// more: that would hit the link's next statement.
func (w *queueWait) setWaiting(k Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting = k
}

// cancel ends the wait, if it is there. Without an answer the link is closed later.
func (w *queueWait) cancel(ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waiting != nil {
		w.b.Dialect.Cancel(ctx, w.waiting.ID())
	}
}

func (w *queueWait) doneWithin(soon time.Duration) bool {
	t := time.NewTimer(soon)
	defer t.Stop()
	select {
	case <-w.done:
		return true
	case <-t.C:
		return false
	}
}

// endByForce leaves a wait that can't be cancelled: no server answers. What it is granted
// can't be used, and ends by the server's own clock.
func (w *queueWait) endByForce() {
	w.force()
	<-w.done
}
