package sqlrow

import (
	"context"
	"sync"

	"github.com/distlock/distlock/driver"
)

// Watch wakes r's owner when a claim on the lock is given back. There is one listener for
// all who wait for a lock in this backend; it says in the row that somebody listens.
func (b *Backend) Watch(ctx context.Context, r driver.Request) (driver.Watch, error) {
	w, err := b.watch(ctx, r)
	return w, b.wrap("watch", r.Name, err)
}

func (b *Backend) watch(ctx context.Context, r driver.Request) (driver.Watch, error) {
	if err := b.open(ctx); err != nil {
		return driver.Watch{}, err
	}
	w := &rowWaiter{request: r, ready: make(chan struct{}, 1), armed: make(chan error, 1)}
	l, err := b.watchers.add(w)
	if err != nil {
		return driver.Watch{}, err
	}
	select {
	case err = <-w.armed:
	case <-ctx.Done():
		err = ctx.Err()
	case <-b.ctx.Done():
		err = driver.ErrClosed
	}
	if err != nil {
		b.watchers.remove(l, w)
		return driver.Watch{}, err
	}
	return driver.Watch{Ready: w.ready, Close: func() { b.watchers.remove(l, w) }}, nil
}

// rowWaiter is one armed wait.
type rowWaiter struct {
	request driver.Request
	ready   chan struct{} // holds a signal that was not taken yet
	armed   chan error    // gets one answer
	isArmed bool          // it got it; guarded by the hub's mutex
}

func (w *rowWaiter) arm(err error) {
	if !w.isArmed {
		w.isArmed = true
		w.armed <- err
	}
}

func (w *rowWaiter) wake() {
	select {
	case w.ready <- struct{}{}:
	default:
	}
}

// watcherSet has the listeners, one for each lock that is waited for here.
type watcherSet struct {
	b  *Backend
	wg sync.WaitGroup

	mu    sync.Mutex
	byKey map[Key]*rowWatcher
}

func (h *watcherSet) init(b *Backend) { h.b, h.byKey = b, map[Key]*rowWatcher{} }

func (h *watcherSet) add(w *rowWaiter) (*rowWatcher, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.b.ctx.Err() != nil {
		return nil, driver.ErrClosed
	}
	k := KeyOf(w.request.Name)
	l := h.byKey[k]
	if l == nil {
		l = newRowWatcher(h, k, w.request.Name)
		h.byKey[k] = l
		h.wg.Go(l.run)
	}
	l.waiters[w] = struct{}{}
	if l.live {
		w.arm(nil)
		l.lookAgain()
	}
	return l, nil
}

func (h *watcherSet) remove(l *rowWatcher, w *rowWaiter) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(l.waiters, w)
}

// removeUnused ends a listener for which nobody waits any more.
func (h *watcherSet) removeUnused(l *rowWatcher) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(l.waiters) > 0 && h.b.ctx.Err() == nil {
		return false
	}
	delete(h.byKey, l.key)
	return true
}

// wake signals those who wait for k, and lets their listener look at the row again.
func (h *watcherSet) wake(k Key) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l := h.byKey[k]; l != nil {
		l.wake()
		l.lookAgain()
	}
}

func (h *watcherSet) signal(l *rowWatcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l.wake()
}

func (h *watcherSet) wakeAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range h.byKey {
		l.wake()
		l.lookAgain()
	}
}

func (h *watcherSet) close() {
	h.mu.Lock()
	h.b.cancel()
	h.mu.Unlock()
	h.wg.Wait()
}
