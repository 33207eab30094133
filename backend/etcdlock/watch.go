package etcdlock

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// polls are when after arming a watch asks to look anyway. A server may take a watch for
// one of the past, if something is written while it is armed, and tell such watches what
// they missed every 100 ms only.
var polls = []time.Duration{3 * time.Millisecond, 5 * time.Millisecond, 12 * time.Millisecond, 30 * time.Millisecond}

// watch waits for one Owner. Who stands in line watches the key that keeps it out, and
// its own; who does not, all keys of the lock.
type watch struct {
	b      *Backend
	folder string
	owner  string
	mode   driver.Mode
	limit  int
	ready  chan struct{}
	live   chan struct{} // closed when first armed

	mu     sync.Mutex
	subs   []*sub
	of     []string // what they watch: own key, key ahead; or nothing
	ahead  []string // of a permit: those before it
	armedN int
	once   bool
	closed bool
	timer  *time.Timer
	poll   int
	quick  bool // the lock may be let go of at any moment
}

// Watch returns when the servers watch. Who is signalled asks again, and is thereby
// watching what keeps it out then.
func (b *Backend) Watch(ctx context.Context, r driver.Request) (driver.Watch, error) {
	ctx, err := b.begin(ctx)
	if err != nil {
		return driver.Watch{}, err
	}
	if err := valid(&r); err != nil {
		return driver.Watch{}, err
	}
	w := &watch{b: b, folder: b.folder(r.Name), owner: r.Owner, mode: r.Mode, limit: r.Limit, ready: make(chan struct{}, 1), live: make(chan struct{})}
	w.begin(r.Name)
	select {
	case <-w.live:
		return driver.Watch{Ready: w.ready, Close: w.close}, nil
	case <-ctx.Done():
	case <-b.hub.ctx.Done():
	}
	w.close()
	if _, err := b.begin(ctx); err != nil {
		return driver.Watch{}, err
	}
	return driver.Watch{}, fmt.Errorf("etcdlock: watch %s: %w", driver.Quote(r.Name), ctx.Err())
}

// begin arms the watch for the first time.
func (w *watch) begin(name string) {
	s := &w.b.claims
	s.mu.Lock()
	c := s.m[w.owner]
	placed := c != nil && c.name == name && c.create > 0 && c.block != ""
	if placed {
		s.watches[w.owner] = w
	}
	s.mu.Unlock()
	if placed {
		w.follow(c)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.subs = []*sub{w.b.hub.watch(&sub{listener: w, key: w.folder, end: end(w.folder), puts: w.mode == driver.Read})}
}

// follow watches what stands in the way of a place in line.
func (w *watch) follow(c *claim) {
	w.b.claims.mu.Lock()
	own, block, quick, ahead := c.key, c.block, c.next, slices.Clone(c.ahead)
	w.b.claims.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ahead = ahead
	if w.closed {
		return
	}
	of := []string{own, block}
	if w.mode == driver.Counted {
		// Any of those before it may be the one that makes room.
		of = []string{own, w.folder}
	}
	if slices.Equal(of, w.of) {
		return
	}
	for _, s := range w.subs {
		w.b.hub.unwatch(s)
	}
	w.of, w.quick, w.armedN, w.poll = of, quick, 0, 0
	next := &sub{listener: w, key: block, puts: w.mode == driver.Read}
	if w.mode == driver.Counted {
		next = &sub{listener: w, key: w.folder, end: end(w.folder)}
	}
	w.subs = []*sub{w.b.hub.watch(&sub{listener: w, key: own}), w.b.hub.watch(next)}
}

// armed: a watch is live. What happened before that has to be looked for.
func (w *watch) armed(bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.armedN++
	if w.closed || w.armedN < len(w.subs) {
		return
	}
	if !w.once {
		// The caller looks itself when it hears that the watch is armed.
		w.once = true
		close(w.live)
	} else {
		w.signal()
	}
	if w.quick && w.poll == 0 {
		w.pollLater()
	}
}

// pollLater sets the timer for the next poll. The mutex is held.
func (w *watch) pollLater() {
	if w.timer != nil {
		w.timer.Stop()
	}
	if w.poll < len(polls) && !w.closed {
		w.timer = time.AfterFunc(polls[w.poll], w.pollNow)
		w.poll++
	}
}

func (w *watch) pollNow() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.signal()
	w.pollLater()
}

func (w *watch) event(ev *mvccpb.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.letsIn(ev) {
		w.signal()
	}
}

// letsIn reports whether an event may be good news, or news of the own key.
func (w *watch) letsIn(ev *mvccpb.Event) bool {
	e, ok := readEntry(w.folder, ev.Kv)
	switch {
	case !ok:
		return false // another lock's, with a longer name
	case ev.Type == mvccpb.PUT:
		// A writer that has become a reader; those that still write are no news.
		return e.mode == driver.Read
	}
	key := e.key
	if w.mode != driver.Counted || len(w.of) == 0 || key == w.of[0] {
		return true
	}
	i := slices.Index(w.ahead, key)
	if i >= 0 {
		w.ahead = slices.Delete(w.ahead, i, i+1)
	}
	return i >= 0 && len(w.ahead) < w.limit
}

// signal rings. The mutex is held.
func (w *watch) signal() {
	select {
	case w.ready <- struct{}{}:
	default:
	}
}

func (w *watch) close() {
	s := &w.b.claims
	s.mu.Lock()
	if s.watches[w.owner] == w {
		delete(s.watches, w.owner)
	}
	s.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	if w.timer != nil {
		w.timer.Stop()
	}
	for _, s := range w.subs {
		w.b.hub.unwatch(s)
	}
	w.subs = nil
}
