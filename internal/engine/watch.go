package engine

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
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
	w := &waiter{request: r, ready: wait.NewSignal(), told: -1, follows: make(chan string, 1)}
	stop, err := b.store.Listen(ctx, Waiter{r.Name, r.Owner, b.address, r.Queue, w.follows, func() { b.waiters.poll(b, w) }}, b.waiters.wake)
	if errors.Is(err, driver.ErrClosed) || err != nil && ctx.Err() != nil {
		return driver.Watch{}, err
	}
	if w.listens, w.polls = err == nil, err != nil; w.polls {
		stop = func() {}
	}
	if !b.waiters.add(b, w) {
		stop()
		return driver.Watch{}, driver.ErrClosed
	}
	if b.options.Address != nil && w.listens { // until the attempt that comes next says whom it is behind
		b.waiters.poll(b, w)
	}
	return driver.Watch{Ready: w.ready, Close: func() { b.waiters.remove(w); stop() }}, nil
}

// waiter is one call of Watch.
type waiter struct {
	request driver.Request
	ready   wait.Signal
	follows chan string // see Waiter
	listens bool        // the store wakes it

	// Guarded by the mutex of waiters.
	polls bool
	told  int64 // the version at which it was woken last
	woken bool  // by a change that lets in its owner
	seen  int64 // the version that said whom it is behind
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
	if w.polls {
		ws.startPolling(b)
	}
	return true
}

// startPolling starts the goroutine that polls. The mutex is held.
func (ws *waiters) startPolling(b *Backend) {
	if !ws.polling && !ws.closed {
		ws.polling = true
		b.tasks.Go(b.poll)
	}
}

// poll makes a waiter poll.
func (ws *waiters) poll(b *Backend, w *waiter) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w.polls = true
	ws.startPolling(b)
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

// pollAll makes the waiters of an owner poll; "": of all owners.
func (ws *waiters) pollAll(b *Backend, name, owner string) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for w := range ws.byName[name] {
		if owner == "" || w.request.Owner == owner {
			w.polls = true
			ws.startPolling(b)
		}
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

// any reports whether somebody waits for a lock.
func (ws *waiters) any(name string) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return len(ws.byName[name]) > 0
}

// followed tells the waiters for a lock whom they are behind. The first of them follows that, as do those who wait for the same
// claim. The others are behind the first, and told anew when that has got the lock and released it, or has left.
func (b *Backend) followed(name string, l *lock) {
	if b.options.Address == nil {
		return
	}
	b.waiters.mu.Lock()
	defer b.waiters.mu.Unlock()
	behind := map[*waiter][]*claims.Claim{}
	var first *waiter
	for w := range b.waiters.byName[name] {
		if !w.listens || l.version < w.seen {
			continue
		}
		if behind[w] = l.Blockers(&w.request); len(behind[w]) > 0 && (first == nil || len(behind[w]) < len(behind[first])) {
			first = w
		}
	}
	for w, all := range behind {
		w.seen, w.polls = l.version, false
		address := ""
		switch {
		case len(all) == 0: // it follows nobody from now on
			w.ready.Notify()
		case last(all) == last(behind[first]):
			address, w.polls = b.addressOf(all, w.request.Mode)
		}
		if w.polls {
			b.waiters.startPolling(b)
		}
		w.tell(address)
	}
}

func last(list []*claims.Claim) *claims.Claim { return list[len(list)-1] }

// addressOf returns the address to follow, if all these claims must end. A permit may come from any of them, so there must not be
// several addresses.
func (b *Backend) addressOf(all []*claims.Claim, mode driver.Mode) (address string, polls bool) {
	address = last(all).Address
	for _, c := range all {
		if mode == driver.Counted && c.Address != address {
			return "", true
		}
	}
	if b.mine(address) { // this backend wakes its own waiters
		return "", false
	}
	return address, address == ""
}

// tell replaces what was told before. The mutex is held.
func (w *waiter) tell(address string) {
	select {
	case <-w.follows:
	default:
	}
	w.follows <- address
}

const (
	firstPoll = 5 * time.Millisecond
	maxPoll   = 100 * time.Millisecond
)

// poll reads the locks of all who poll, ever more slowly while nothing changes, until there are none.
func (b *Backend) poll() {
	for pause := firstPoll; wait.Sleep(b.ctx, pause) == nil; {
		names := b.waiters.polled()
		if len(names) == 0 {
			return
		}
		all, err := b.readAll(b.ctx, names)
		pause = min(2*pause, maxPoll)
		for i := range all {
			l, bad := see(all[i])
			if err != nil || bad != nil {
				continue
			}
			if b.waiters.saw(names[i], l) {
				pause = firstPoll
			}
			b.followed(names[i], l)
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
	return slices.DeleteFunc(list, func(w Wake) bool { return b.mine(w.Address) || w.Address == "" })
}

// wakeTimeout bounds what nobody waits for.
const wakeTimeout = 2 * time.Second

// wake wakes all that a change let in, of whom the store has woken some already. If the lock is not known, that are those of
// other backends.
func (b *Backend) wake(ctx context.Context, name string, told []Wake, l *lock) {
	if l == nil && b.waiters.any(name) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), wakeTimeout)
		defer cancel()
		if l, _ = b.read(ctx, name); l == nil {
			b.waiters.pollAll(b, name, "")
		}
	}
	if l == nil {
		return
	}
	all := l.wakes(name)
	for _, w := range all {
		if b.mine(w.Address) {
			b.waiters.wake(EndOf(w.Owner))
		}
	}
	b.waiters.saw(name, l)
	b.followed(name, l)
	left := slices.DeleteFunc(b.others(all), func(w Wake) bool { return slices.Contains(told, w) })
	if len(left) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), wakeTimeout)
	defer cancel()
	b.store.Wake(ctx, left)
}
