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

// pollDelays are when after arming a watch asks to look anyway. A server may take a watch for
// one of the past, if something is written while it is armed, and tell such watches what
// they missed every 100 ms only.
var pollDelays = []time.Duration{3 * time.Millisecond, 5 * time.Millisecond, 12 * time.Millisecond, 30 * time.Millisecond}

// releaseWatch waits for one Owner. Who stands in line watches the key that keeps it out, and
// its own; who does not, all keys of the lock.
type releaseWatch struct {
	b      *Backend
	folder string
	owner  string
	mode   driver.Mode
	limit  int
	ready  chan struct{}
	live   chan struct{} // closed when first armed

	mu           sync.Mutex
	watches      []*keyWatch
	watchedKeys  []string // what they watch: own key, key ahead; or nothing
	keysAhead    []string // of a permit: those before it
	startedCount int
	announced    bool
	closed       bool
	timer        *time.Timer
	polls        int
	isNext       bool // the lock may be let go of at any moment
}

// Watch returns when the servers watch. Who is signalled asks again, and is thereby
// watching what keeps it out then.
func (b *Backend) Watch(ctx context.Context, r driver.Request) (driver.Watch, error) {
	ctx, err := b.prepare(ctx)
	if err != nil {
		return driver.Watch{}, err
	}
	if err := validRequest(&r); err != nil {
		return driver.Watch{}, err
	}
	w := &releaseWatch{b: b, folder: b.folder(r.Name), owner: r.Owner, mode: r.Mode, limit: r.Limit, ready: make(chan struct{}, 1), live: make(chan struct{})}
	w.start(r.Name)
	select {
	case <-w.live:
		return driver.Watch{Ready: w.ready, Close: w.close}, nil
	case <-ctx.Done():
	case <-b.stream.ctx.Done():
	}
	w.close()
	if _, err := b.prepare(ctx); err != nil {
		return driver.Watch{}, err
	}
	return driver.Watch{}, fmt.Errorf("etcdlock: watch %s: %w", driver.Quote(r.Name), ctx.Err())
}

// start arms the watch for the first time.
func (w *releaseWatch) start(name string) {
	s := &w.b.owners
	s.mu.Lock()
	c := s.byOwner[w.owner]
	placed := c != nil && c.name == name && c.created > 0 && c.blocker != ""
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
	w.watches = []*keyWatch{w.b.stream.watch(&keyWatch{keyHandler: w, key: w.folder, end: folderEnd(w.folder), puts: w.mode == driver.Read})}
}

// follow watches what stands in the way of a place in line.
func (w *releaseWatch) follow(c *ownerState) {
	w.b.owners.mu.Lock()
	own, block, quick, ahead := c.key, c.blocker, c.isNext, slices.Clone(c.keysAhead)
	w.b.owners.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.keysAhead = ahead
	if w.closed {
		return
	}
	of := []string{own, block}
	if w.mode == driver.Counted {
		// Any of those before it may be the one that makes room.
		of = []string{own, w.folder}
	}
	if slices.Equal(of, w.watchedKeys) {
		return
	}
	for _, s := range w.watches {
		w.b.stream.unwatch(s)
	}
	w.watchedKeys, w.isNext, w.startedCount, w.polls = of, quick, 0, 0
	next := &keyWatch{keyHandler: w, key: block, puts: w.mode == driver.Read}
	if w.mode == driver.Counted {
		next = &keyWatch{keyHandler: w, key: w.folder, end: folderEnd(w.folder)}
	}
	w.watches = []*keyWatch{w.b.stream.watch(&keyWatch{keyHandler: w, key: own}), w.b.stream.watch(next)}
}

// started: a watch is live. What happened before that has to be looked for.
func (w *releaseWatch) started(bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.startedCount++
	if w.closed || w.startedCount < len(w.watches) {
		return
	}
	if !w.announced {
		// The caller looks itself when it hears that the watch is armed.
		w.announced = true
		close(w.live)
	} else {
		w.signal()
	}
	if w.isNext && w.polls == 0 {
		w.pollLater()
	}
}

// pollLater sets the timer for the next poll. The mutex is held.
func (w *releaseWatch) pollLater() {
	if w.timer != nil {
		w.timer.Stop()
	}
	if w.polls < len(pollDelays) && !w.closed {
		w.timer = time.AfterFunc(pollDelays[w.polls], w.pollNow)
		w.polls++
	}
}

func (w *releaseWatch) pollNow() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.signal()
	w.pollLater()
}

func (w *releaseWatch) event(ev *mvccpb.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mayUnblock(ev) {
		w.signal()
	}
}

// mayUnblock reports whether an event may be good news, or news of the own key.
func (w *releaseWatch) mayUnblock(ev *mvccpb.Event) bool {
	e, ok := parseKey(w.folder, ev.Kv)
	switch {
	case !ok:
		return false // another lock's, with a longer name
	case ev.Type == mvccpb.PUT:
		// A writer that has become a reader; those that still write are no news.
		return e.mode == driver.Read
	}
	key := e.key
	if w.mode != driver.Counted || len(w.watchedKeys) == 0 || key == w.watchedKeys[0] {
		return true
	}
	i := slices.Index(w.keysAhead, key)
	if i >= 0 {
		w.keysAhead = slices.Delete(w.keysAhead, i, i+1)
	}
	return i >= 0 && len(w.keysAhead) < w.limit
}

// signal rings. The mutex is held.
func (w *releaseWatch) signal() {
	select {
	case w.ready <- struct{}{}:
	default:
	}
}

func (w *releaseWatch) close() {
	s := &w.b.owners
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
	for _, s := range w.watches {
		w.b.stream.unwatch(s)
	}
	w.watches = nil
}
