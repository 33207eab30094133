package quorum

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
)

// gather is how long after the first member's signal the others' are awaited: a release
// reaches the members one after the other, and an attempt after the first would be
// refused by the rest.
const gather = 2 * time.Millisecond

// Watch arms at all members that can push, and returns when a majority of the members
// is armed, or as many as there are. It signals when a majority has, or a moment after
// the first. One member is enough, since a release is told at each; with a member down a
// signal can be missed, which costs a delay.
func (b *Backend) Watch(ctx context.Context, r driver.Request) (driver.Watch, error) {
	if err := b.begin(ctx); err != nil {
		return driver.Watch{}, err
	}
	defer b.tasks.Done()
	w := &watch{b: b, ready: make(chan struct{}, 1), signal: make(chan int, len(b.members)), stop: make(chan struct{})}
	armed := make(chan answer, len(b.members))
	for i, m := range b.members {
		b.tasks.Add(1)
		go func() {
			defer b.tasks.Done()
			armed <- answer{i, w.arm(ctx, m, r, i)}
		}()
	}
	n, pending, t := 0, b.everyone(), tally{of: len(b.members)}
	for n < b.majority && b.worthWaiting(pending.has) {
		select {
		case a := <-armed:
			if pending[a.member] = false; a.err == nil {
				n++
			} else if !errors.Is(a.err, driver.ErrSkip) {
				t.add(b.members[a.member], a.err)
			}
			continue
		case <-ctx.Done():
		}
		break
	}
	if n == 0 {
		w.close()
		return driver.Watch{}, t.unarmed(ctx, r.Name, b.majority)
	}
	b.tasks.Add(1)
	go func() {
		defer b.tasks.Done()
		w.merge(b.majority)
	}()
	return driver.Watch{Ready: w.ready, Close: w.close}, nil
}

// unarmed says why no member is armed.
func (t *tally) unarmed(ctx context.Context, name string, majority int) error {
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("quorum: watch %s: %w", driver.Quote(name), ctx.Err())
	case t.answered() == 0:
		return driver.ErrSkip
	case t.final > t.of-majority:
		return fmt.Errorf("quorum: watch %s: %w", driver.Quote(name), t.finalErr)
	}
	return t.unknown("watch", name)
}

// watch merges the members' watches.
type watch struct {
	b      *Backend
	ready  chan struct{}
	signal chan int // which member's watch fired
	stop   chan struct{}

	mu     sync.Mutex
	closed bool
	inner  []driver.Watch
	fwd    sync.WaitGroup
}

// arm arms at one member. One that waits natively might take the lock there, and then
// several waiters could each keep some members from all others: it is left out.
func (w *watch) arm(values context.Context, m *member, r driver.Request, i int) error {
	waiter, ok := m.Backend.(driver.Watcher)
	if !ok || m.Caps().Queueing == driver.QueueAlways {
		return driver.ErrSkip
	}
	r.TTL += w.b.drift(r.TTL)
	ctx, cancel := w.b.bound(values, r.TTL)
	defer cancel()
	inner, err := waiter.Watch(ctx, r)
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
func (w *watch) forward(ready <-chan struct{}, member int) {
	for {
		select {
		case <-ready:
		case <-w.stop:
			return
		case <-w.b.closing:
			w.ring() // for the waiter to find out
			return
		}
		select {
		case w.signal <- member:
		case <-w.stop:
			return
		}
	}
}

// merge signals when a majority of the members has, or a moment after the first.
func (w *watch) merge(majority int) {
	fired := map[int]bool{}
	t := time.NewTimer(gather)
	defer t.Stop()
	t.Stop()
	for {
		select {
		case member := <-w.signal:
			if len(fired) == 0 {
				t.Reset(gather)
			}
			if fired[member] = true; len(fired) < majority {
				continue
			}
			t.Stop()
		case <-t.C:
		case <-w.stop:
			return
		case <-w.b.closing:
			return
		}
		clear(fired)
		w.ring()
	}
}

func (w *watch) ring() {
	select {
	case w.ready <- struct{}{}:
	default:
	}
}

// close ends the members' watches; one that arms later is closed when it has.
func (w *watch) close() {
	w.mu.Lock()
	w.closed = true
	inner := w.inner
	w.inner = nil
	w.mu.Unlock()
	close(w.stop)
	for _, i := range inner {
		i.Close()
	}
	w.fwd.Wait()
}
