package connlock

import (
	"context"
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
	ttl   time.Duration
	ready wait.Signal

	closing context.Context
	close   context.CancelFunc
	done    chan struct{} // closed when it can't take the lock any more
}

// Watch waits in the server's queue, and takes the lock for r's Owner. It returns ErrSkip if waiters poll or there are too
// many, and an error if the pool has no connection for it.
func (b *Backend) Watch(ctx context.Context, r driver.Request) (driver.Watch, error) {
	if err := b.validate(r); err != nil {
		return driver.Watch{}, err
	}
	if b.Polling || !b.reserveWait() {
		return driver.Watch{}, driver.ErrSkip
	}
	w := &queueWait{b: b, lock: b.lockOf(r), ttl: r.TTL, ready: wait.NewSignal(), done: make(chan struct{})}
	w.closing, w.close = context.WithCancel(b.ctx)
	own, end := b.bounded(ctx)
	defer end()
	c, err := b.connFor(own, w.ttl)
	if err == nil && !b.goTask(func() { w.run(c) }) {
		c.leave()
		err = driver.ErrClosed
	}
	if err != nil {
		b.waiting.Add(-1)
		w.close()
		return driver.Watch{}, b.wrapError("watch", r.Name, err)
	}
	return driver.Watch{Ready: w.ready, Close: w.stop}, nil
}

// reserveWait counts a waiter if there is room for it. Waiters get at most half of a limited pool.
func (b *Backend) reserveWait() bool {
	most := maxWaiting
	if limit := b.DB.Stats().MaxOpenConnections; limit > 0 {
		most = min(most, (limit-1)/2)
	}
	if b.waiting.Add(1) <= int32(most) {
		return true
	}
	b.waiting.Add(-1)
	return false
}

// run waits until it has the lock or is closed. A connection that fails is replaced.
func (w *queueWait) run(c *lockConn) {
	defer close(w.done)
	defer w.b.waiting.Add(-1)
	defer w.close()
	for w.closing.Err() == nil {
		if c.isDead() {
			w.ready.Notify() // the waiter's own attempt may succeed
			wait.Sleep(w.closing, retryPause)
			if next, err := w.b.connFor(w.closing, w.ttl); err == nil {
				c = next
			}
			continue
		}
		got, err := w.waitSlice(c)
		if got {
			w.ready.Notify()
			return
		}
		if err != nil {
			c.giveUp() // the server may still be about to grant the lock
		}
	}
	c.leave()
}

// waitSlice waits for one slice, unless the wait is closed. The connection that has got the lock is a hold's.
func (w *queueWait) waitSlice(c *lockConn) (got bool, err error) {
	err = c.do(w.closing, w.closing, waitSlice+cleanupTime, func(own context.Context) (err error) {
		got, err = c.conn.WaitLock(own, w.lock, waitSlice)
		return err
	})
	if err == nil && got {
		_, err = w.b.enter(c, w.lock)
	}
	return got && err == nil, err
}

// stop ends the wait, and returns when the lock can't be taken any more.
func (w *queueWait) stop() {
	w.close()
	<-w.done
}
