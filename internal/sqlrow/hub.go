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
	w := &watch{request: r, ready: make(chan struct{}, 1), armed: make(chan error, 1)}
	l, err := b.hub.join(w)
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
		b.hub.part(l, w)
		return driver.Watch{}, err
	}
	return driver.Watch{Ready: w.ready, Close: func() { b.hub.part(l, w) }}, nil
}

// watch is one armed wait.
type watch struct {
	request driver.Request
	ready   chan struct{} // holds a signal that was not taken yet
	armed   chan error    // gets one answer
	isArmed bool          // it got it; guarded by the hub's mutex
}

func (w *watch) arm(err error) {
	if !w.isArmed {
		w.isArmed = true
		w.armed <- err
	}
}

func (w *watch) wake() {
	select {
	case w.ready <- struct{}{}:
	default:
	}
}

// hub has the listeners, one for each lock that is waited for here.
type hub struct {
	b  *Backend
	wg sync.WaitGroup

	mu        sync.Mutex
	listeners map[Key]*listener
}

func (h *hub) init(b *Backend) { h.b, h.listeners = b, map[Key]*listener{} }

func (h *hub) join(w *watch) (*listener, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.b.ctx.Err() != nil {
		return nil, driver.ErrClosed
	}
	k := KeyOf(w.request.Name)
	l := h.listeners[k]
	if l == nil {
		l = newListener(h, k, w.request.Name)
		h.listeners[k] = l
		h.wg.Go(l.run)
	}
	l.watches[w] = struct{}{}
	if l.live {
		w.arm(nil)
		l.nudge()
	}
	return l, nil
}

func (h *hub) part(l *listener, w *watch) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(l.watches, w)
}

// deserted ends a listener for which nobody waits any more.
func (h *hub) deserted(l *listener) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(l.watches) > 0 && h.b.ctx.Err() == nil {
		return false
	}
	delete(h.listeners, l.key)
	return true
}

// wake signals those who wait for k, and lets their listener look at the row again.
func (h *hub) wake(k Key) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l := h.listeners[k]; l != nil {
		l.wake()
		l.nudge()
	}
}

func (h *hub) signal(l *listener) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l.wake()
}

func (h *hub) wakeAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range h.listeners {
		l.wake()
		l.nudge()
	}
}

func (h *hub) close() {
	h.mu.Lock()
	h.b.cancel()
	h.mu.Unlock()
	h.wg.Wait()
}
