package connlock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
)

// watch waits in the server's queue, on a link of its own.
type watch struct {
	b     *Backend
	lock  Lock
	lease time.Duration
	ready chan struct{} // holds a signal that was not taken yet

	closing context.Context
	close   context.CancelFunc
	forced  context.Context // to end, though nobody answers
	force   context.CancelFunc
	done    chan struct{} // closed when it takes nothing more
	s       *session      // which it has, or nil; for run alone

	mu      sync.Mutex
	waiting Conn // in a statement that may be cancelled, or nil
}

// Watch waits natively, and takes the lock for r's Owner. ErrSkip if too many wait already,
// or if the pool has no connection to spare for it.
func (b *Backend) Watch(ctx context.Context, r driver.Request) (driver.Watch, error) {
	if err := b.check(r.Hold); err != nil {
		return driver.Watch{}, err
	}
	if err := ctx.Err(); err != nil {
		return driver.Watch{}, b.fail("watch", r.Name, err)
	}
	if !b.mayWait() {
		return driver.Watch{}, driver.ErrSkip
	}
	w := &watch{b: b, lock: b.lockOf(r), lease: class(r.TTL), ready: make(chan struct{}, 1), done: make(chan struct{})}
	w.closing, w.close = context.WithCancel(b.life)
	w.forced, w.force = context.WithCancel(b.life)
	own, end := b.within(ctx)
	defer end()
	if err := w.board(own); err != nil {
		b.waited()
		w.close()
		w.force()
		return driver.Watch{}, b.fail("watch", r.Name, err)
	}
	if !b.begin(w.run) {
		return driver.Watch{}, driver.ErrClosed
	}
	return driver.Watch{Ready: w.ready, Close: w.end}, nil
}

// mayWait counts a waiter, if there is room for one. Half of a limited pool is for waiters,
// at most.
func (b *Backend) mayWait() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	most := maxWaits
	if limit := b.DB.Stats().MaxOpenConnections; limit > 0 {
		most = min(most, (limit-1)/2)
	}
	if b.waits >= most {
		return false
	}
	b.waits++
	return true
}

func (b *Backend) waited() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waits--
}

// board finds a link to wait on.
func (w *watch) board(ctx context.Context) error {
	b := w.b
	b.mu.Lock()
	s := b.spare(w.lease)
	b.mu.Unlock()
	if s == nil {
		var err error
		if s, err = b.open(ctx, w.lease); err != nil {
			return err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s.users++
	w.s = s
	return nil
}

// run waits until it has the lock or is closed.
func (w *watch) run() {
	defer close(w.done)
	defer w.b.waited()
	defer w.close()
	defer w.force()
	for w.closing.Err() == nil {
		if w.s == nil && w.board(w.closing) != nil {
			w.signal() // who waits may do better by itself
			w.pause()
			continue
		}
		got, err := w.wait()
		if got || err != nil || w.closing.Err() != nil {
			w.off()
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
	if w.s != nil {
		w.off()
	}
}

// off leaves its link.
func (w *watch) off() {
	w.b.leave(w.s)
	w.s = nil
}

// wait waits for a slice.
func (w *watch) wait() (got bool, err error) {
	s := w.s
	err = s.doFor(w.closing, slice+lastResort, func(own context.Context) error {
		own, cancel := context.WithCancel(own)
		defer cancel()
		defer context.AfterFunc(w.forced, cancel)()
		w.waitsOn(s.link)
		ok, err := s.link.WaitLock(own, w.lock, slice)
		w.waitsOn(nil)
		switch {
		case err != nil:
			s.undo(w.lock, err)
			return err
		case ok && !w.arrive(s):
			s.undo(w.lock, errors.New("it was not needed"))
		case ok:
			got = true
		}
		return nil
	})
	return got, err
}

// arrive enters what the wait has brought, unless the Owner has it already. The lock
// is this link's: a hold of this process that should be in the way is none any more.
func (w *watch) arrive(s *session) bool {
	b := w.b
	b.mu.Lock()
	if b.holds[w.lock.Owner] != nil || b.closed {
		b.mu.Unlock()
		return false
	}
	stale := b.keys[w.lock.Key]
	if stale != nil {
		b.forget(stale)
	}
	b.enter(s, w.lock, nil)
	b.share(s)
	b.mu.Unlock()
	if stale != nil {
		stale.tellLost()
	}
	return true
}

func (w *watch) signal() {
	select {
	case w.ready <- struct{}{}:
	default:
	}
}

// pause is after what did not work.
func (w *watch) pause() {
	select {
	case <-w.closing.Done():
	case <-time.After(200 * time.Millisecond):
	}
}

// end cancels the wait, and returns when nothing more is taken: it is cancelled until
// that is answered, since one that comes too early hits nothing.
func (w *watch) end() {
	w.close()
	ctx, cancel := context.WithTimeout(w.b.life, lastResort)
	defer cancel()
	for ctx.Err() == nil && !w.over(time.Millisecond) {
		w.cancel(ctx)
		if w.over(20 * time.Millisecond) {
			return
		}
	}
	w.giveUp()
}

// waitsOn notes the link on which it waits. It returns when no cancellation is under way any
// more: that would hit the link's next statement.
func (w *watch) waitsOn(k Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting = k
}

// cancel ends the wait, if it is there. Without an answer the link is closed later.
func (w *watch) cancel(ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waiting != nil {
		w.b.Dialect.Cancel(ctx, w.waiting.ID())
	}
}

func (w *watch) over(soon time.Duration) bool {
	t := time.NewTimer(soon)
	defer t.Stop()
	select {
	case <-w.done:
		return true
	case <-t.C:
		return false
	}
}

// giveUp leaves a wait that can't be cancelled: no server answers. What it is granted
// can't be used, and ends by the server's own clock.
func (w *watch) giveUp() {
	w.force()
	<-w.done
}
