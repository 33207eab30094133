package engine

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
)

// Watch wakes r's owner when a change lets it in, if the store can do that, and polls otherwise. Who has no place is in no text: few
// stores can wake it.
func (b *Backend) Watch(ctx context.Context, r driver.Request) (driver.Watch, error) {
	w, err := b.watch(ctx, r)
	return w, b.wrap("watch", r.Name, err)
}

func (b *Backend) watch(ctx context.Context, r driver.Request) (driver.Watch, error) {
	if err := b.usable(ctx); err != nil {
		return driver.Watch{}, err
	}
	w := &waiter{request: r, ready: wait.NewSignal(), told: -1}
	stop, err := b.store.Listen(ctx, Waiter{r.Name, r.Owner, b.address, r.Queue}, b.waiters.wake)
	if errors.Is(err, driver.ErrClosed) || err != nil && ctx.Err() != nil {
		return driver.Watch{}, err
	}
	if w.polls = err != nil; w.polls {
		stop = func() {}
	}
	if !b.waiters.add(b, w) {
		stop()
		return driver.Watch{}, driver.ErrClosed
	}
	return driver.Watch{Ready: w.ready, Close: func() { b.waiters.remove(w); stop() }}, nil
}

// waiter is one call of Watch.
type waiter struct {
	request driver.Request
	ready   wait.Signal
	polls   bool

	// Guarded by the mutex of waiters.
	told  int64 // the version at which it was woken last
	woken bool  // by a change that lets in its owner
}

// waiters are the watches of a backend.
type waiters struct {
	mu      sync.Mutex
	byName  map[string]map[*waiter]struct{}
	byEnd   map[string]map[*waiter]struct{} // of the owner
	polling bool                            // a goroutine polls
	closed  bool
}

// close refuses further waiters.
func (ws *waiters) close(cancel context.CancelFunc) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.closed = true
	cancel()
}

func (ws *waiters) add(b *Backend, w *waiter) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.closed {
		return false
	}
	put(ws.byName, w.request.Name, w)
	put(ws.byEnd, EndOf(w.request.Owner), w)
	if w.polls && !ws.polling {
		ws.polling = true
		b.tasks.Go(b.poll)
	}
	return true
}

func (ws *waiters) remove(w *waiter) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	remove(ws.byName, w.request.Name, w)
	remove(ws.byEnd, EndOf(w.request.Owner), w)
}

func put(m map[string]map[*waiter]struct{}, key string, w *waiter) {
	if m[key] == nil {
		m[key] = map[*waiter]struct{}{}
	}
	m[key][w] = struct{}{}
}

func remove(m map[string]map[*waiter]struct{}, key string, w *waiter) {
	if delete(m[key], w); len(m[key]) == 0 {
		delete(m, key)
	}
}

// wake wakes the waiter whose owner has this end; "": all.
func (ws *waiters) wake(end string) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for w := range ws.byEnd[end] {
		w.woken = true
		w.ready.Notify()
	}
	if end != "" {
		return
	}
	for _, list := range ws.byName {
		for w := range list {
			w.ready.Notify()
		}
	}
}

// woken reports whether an owner was woken by a change that lets it in, since it was asked last.
func (ws *waiters) woken(name, owner string) (woken bool) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for w := range ws.byName[name] {
		if w.request.Owner == owner {
			woken = woken || w.woken
			w.woken = false
		}
	}
	return woken
}

const (
	firstPoll = 5 * time.Millisecond
	maxPoll   = 100 * time.Millisecond
)

// poll reads the locks of all who poll, ever more slowly while nothing changes, until there are none.
func (b *Backend) poll() {
	pause := firstPoll
	for names := b.waiters.polled(); len(names) > 0; names = b.waiters.polled() {
		all, err := b.readAll(b.ctx, names)
		pause = min(2*pause, maxPoll)
		for i := range all {
			if l, bad := see(all[i]); err == nil && bad == nil && b.waiters.saw(names[i], l) {
				pause = firstPoll
			}
		}
		if wait.Sleep(b.ctx, pause) != nil {
			return
		}
	}
}

// polled returns the names of those who poll. If there are none, the goroutine ends.
func (ws *waiters) polled() (names []string) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for name, list := range ws.byName {
		for w := range list {
			if w.polls {
				names = append(names, name)
				break
			}
		}
	}
	ws.polling = len(names) > 0 && !ws.closed
	if !ws.polling {
		return nil
	}
	return names
}

// saw wakes those who poll, or have no place, and may hold now, once for each version. It reports whether there are any.
func (ws *waiters) saw(name string, l *lock) (any bool) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for w := range ws.byName[name] {
		if (w.polls || !w.request.Queue) && w.told != l.version && l.Admits(&w.request) {
			w.told, any = l.version, true
			w.ready.Notify()
		}
	}
	return any
}

// others returns the waiters of other backends.
func (b *Backend) others(list []Wake) []Wake {
	return slices.DeleteFunc(list, func(w Wake) bool { return w.Address == b.address || w.Address == "" })
}

// wakeTimeout bounds what nobody waits for.
const wakeTimeout = 2 * time.Second

// wake wakes all that a change let in, of whom the store has woken some already.
func (b *Backend) wake(ctx context.Context, name string, told []Wake, l *lock) {
	all := l.wakes(name)
	for _, w := range all {
		if w.Address == b.address {
			b.waiters.wake(EndOf(w.Owner))
		}
	}
	b.waiters.saw(name, l)
	left := slices.DeleteFunc(b.others(all), func(w Wake) bool { return slices.Contains(told, w) })
	if len(left) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), wakeTimeout)
	defer cancel()
	b.store.Wake(ctx, left)
}
