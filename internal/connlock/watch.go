package connlock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
)

const (
	maxWaiting = 16 // connections that wait; other waiters poll
	retryPause = 200 * time.Millisecond
)

// queueWait is one waiter in the server's queue, on a connection of its own.
type queueWait struct {
	b     *Backend
	lock  Lock
	lease time.Duration
	ready wait.Signal

	closing context.Context
	close   context.CancelFunc
	forced  context.Context // ends when the server does not answer a cancellation
	force   context.CancelFunc
	done    chan struct{} // closed when it can't take the lock any more
	conn    *lockConn     // or nil; used by run only

	mu      sync.Mutex
	waiting Conn // whose statement may be cancelled, or nil
}

// Watch waits in the server's queue, and takes the lock for r's Owner. It returns ErrSkip if waiters poll or there are too
// many, and an error if the pool has no connection for it.
func (b *Backend) Watch(ctx context.Context, r driver.Request) (driver.Watch, error) {
	if err := b.validate(r); err != nil {
		return driver.Watch{}, err
	}
	if err := ctx.Err(); err != nil {
		return driver.Watch{}, b.wrapError("watch", r.Name, err)
	}
	if b.Polling || !b.reserveWait() {
		return driver.Watch{}, driver.ErrSkip
	}
	w := &queueWait{b: b, lock: b.lockOf(r), lease: leaseClass(r.TTL), ready: wait.NewSignal(), done: make(chan struct{})}
	w.closing, w.close = context.WithCancel(b.ctx)
	w.forced, w.force = context.WithCancel(b.ctx)
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

// reserveWait counts a waiter if there is room for it. Waiters get at most half of a limited pool.
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

// run waits until it has the lock or is closed.
func (w *queueWait) run() {
	defer close(w.done)
	defer w.b.endWait()
	defer w.close()
	defer w.force()
	for w.closing.Err() == nil {
		if w.conn == nil && w.connect(w.closing) != nil {
			w.ready.Notify() // the waiter's own attempt may succeed
			wait.Sleep(w.closing, retryPause)
			continue
		}
		got, err := w.waitSlice()
		if got || err != nil || w.closing.Err() != nil {
			w.disconnect()
		}
		switch {
		case got:
			w.ready.Notify()
			return
		case err != nil && w.closing.Err() == nil:
			w.ready.Notify()
			wait.Sleep(w.closing, retryPause)
		}
	}
	if w.conn != nil {
		w.disconnect()
	}
}

// connect gets a connection to wait on.
func (w *queueWait) connect(ctx context.Context) error {
	b := w.b
	b.mu.Lock()
	c := b.takeIdle(func(c *lockConn) bool { return c.lease == w.lease })
	b.mu.Unlock()
	if c == nil {
		var err error
		if c, err = b.openConn(ctx, w.lease); err != nil {
			return err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	c.attempts++
	w.conn = c
	return nil
}

func (w *queueWait) disconnect() {
	w.b.endAttempt(w.conn)
	w.conn = nil
}

// waitSlice waits for one slice.
func (w *queueWait) waitSlice() (got bool, err error) {
	c := w.conn
	err = c.doFor(w.closing, waitSlice+cleanupTime, func(own context.Context) error {
		own, cancel := context.WithCancel(own)
		defer cancel()
		defer context.AfterFunc(w.forced, cancel)()
		w.setWaiting(c.conn)
		ok, err := c.conn.WaitLock(own, w.lock, waitSlice)
		w.setWaiting(nil)
		switch {
		case err != nil:
			c.undo(w.lock, err)
			return err
		case ok && !w.granted(c):
			c.undo(w.lock, errors.New("it was not needed"))
		case ok:
			got = true
		}
		return nil
	})
	return got, err
}

// granted adds the hold, unless the Owner has the lock already. The connection has the lock, so another hold
// of this process with the same key is stale.
func (w *queueWait) granted(c *lockConn) bool {
	b := w.b
	b.mu.Lock()
	if b.byOwner[w.lock.Owner] != nil || b.closed {
		b.mu.Unlock()
		return false
	}
	_, stale := b.enterHold(c, w.lock)
	b.share(c)
	b.mu.Unlock()
	if stale != nil {
		stale.notifyLost()
	}
	return true
}

// setWaiting notes the connection whose statement may be cancelled. It returns when no cancellation is
// under way any more, which would hit the connection's next statement.
func (w *queueWait) setWaiting(c Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting = c
}

// stop ends the wait, and returns when the lock can't be taken any more. It cancels repeatedly, since a
// cancellation that comes before the statement has no effect. Without an answer the connection is closed.
func (w *queueWait) stop() {
	w.close()
	ctx, cancel := context.WithTimeout(w.b.ctx, cleanupTime)
	defer cancel()
	for ctx.Err() == nil && !w.doneWithin(time.Millisecond) {
		w.cancel(ctx)
		if w.doneWithin(20 * time.Millisecond) {
			return
		}
	}
	w.force()
	<-w.done
}

// cancel cancels the statement that waits, if there is one.
func (w *queueWait) cancel(ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waiting != nil {
		w.b.Dialect.Cancel(ctx, w.waiting.ID())
	}
}

func (w *queueWait) doneWithin(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-w.done:
		return true
	case <-t.C:
		return false
	}
}
