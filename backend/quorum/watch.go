package quorum

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/members"
	"github.com/distlock/distlock/internal/wait"
)

// signalDelay is how long to wait for the signals of a majority after the first one: a release
// reaches the members one after the other, and an attempt after the first would be refused by
// the rest.
const signalDelay = 2 * time.Millisecond

// Watch watches at all members that can push. It returns when a majority has been armed, or all
// members that can be. It signals when a majority has signalled, or a moment after the first
// member. One armed member suffices, since a release reaches all; if a signal is lost with a
// member, the waiter is delayed.
func (b *Backend) Watch(ctx context.Context, r driver.Request) (driver.Watch, error) {
	if err := b.calls.Begin(ctx); err != nil {
		return driver.Watch{}, err
	}
	defer b.calls.End()
	w := &mergedWatch{b: b, ready: wait.NewSignal(), stop: make(chan struct{}), fired: map[int]bool{}}
	p := b.poll(func(i int, m *member) error { return w.arm(ctx, m, r, i) })
	for p.yes < b.majority && p.next(ctx, nil) {
	}
	if p.yes == 0 {
		w.close()
		return driver.Watch{}, p.unarmed(ctx, r.Name, b.majority)
	}
	return driver.Watch{Ready: w.ready, Close: w.close}, nil
}

// unarmed returns the reason why no member is armed.
func (t *tally) unarmed(ctx context.Context, name string, majority int) error {
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("quorum: watch %s: %w", driver.Quote(name), ctx.Err())
	case t.answered() == t.skip:
		return driver.ErrSkip
	}
	return t.result("watch", name, majority)
}

// mergedWatch merges the members' watches.
type mergedWatch struct {
	b     *Backend
	ready wait.Signal
	stop  chan struct{}

	mu     sync.Mutex
	closed bool
	inner  []driver.Watch
	fwd    wait.Group   // of forward
	fired  map[int]bool // members that have signalled since the last notification
	timer  *time.Timer  // notifies
}

// arm arms the watch of one member. It skips a member whose watch might take the lock: several
// waiters could each keep some members from the others, and the watch would go on taking the lock
// for an Owner that was released.
func (w *mergedWatch) arm(values context.Context, m *member, r driver.Request, i int) error {
	if members.WatchTakes(m.Caps()) {
		return driver.ErrSkip
	}
	r.TTL += w.b.drift(r.TTL)
	ctx, cancel := w.b.callContext(values, r.TTL)
	defer cancel()
	inner, err := m.Watch(ctx, r)
	if m.note(err); err != nil {
		return err
	}
	w.mu.Lock()
	if !w.closed {
		w.inner = append(w.inner, inner)
		w.fwd.Go(func() { w.forward(inner.Ready, i) })
		w.mu.Unlock()
		return nil
	}
	w.mu.Unlock()
	inner.Close()
	return errLateArm
}

var errLateArm = errors.New("armed too late")

// forward passes a member's signals on.
func (w *mergedWatch) forward(ready <-chan struct{}, member int) {
	for {
		select {
		case <-ready:
		case <-w.stop:
			return
		case <-w.b.calls.Life.Done():
			w.ready.Notify() // the waiter's next attempt returns ErrClosed
			return
		}
		w.signalled(member)
	}
}

// signalled notifies when a majority of the members has signalled, or signalDelay after the first.
func (w *mergedWatch) signalled(member int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fired[member] = true; len(w.fired) >= w.b.majority {
		w.notify()
	} else if w.timer == nil {
		w.timer = time.AfterFunc(signalDelay, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.notify()
		})
	}
}

// notify notifies the waiter of all signals so far. mu is held.
func (w *mergedWatch) notify() {
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
	if len(w.fired) > 0 {
		clear(w.fired)
		w.ready.Notify()
	}
}

// close ends the members' watches. One that is armed later is closed by arm.
func (w *mergedWatch) close() {
	w.mu.Lock()
	w.closed = true
	inner := w.inner
	clear(w.fired)
	w.notify()
	w.mu.Unlock()
	close(w.stop)
	for _, i := range inner {
		i.Close()
	}
	w.fwd.Wait()
}
