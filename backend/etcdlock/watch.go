package etcdlock

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// pollDelays has the delays after which a new watch signals without an event. If a key is written just then,
// the server may count the watch as one on the past, which it serves every 100 ms only.
var pollDelays = []time.Duration{3 * time.Millisecond, 5 * time.Millisecond, 12 * time.Millisecond, 30 * time.Millisecond}

// releaseWatch waits for one Owner. For an Owner in the queue it watches the Owner's key and the
// key of its blocker, otherwise all keys of the lock.
type releaseWatch struct {
	b      *Backend
	folder string
	owner  string
	mode   driver.Mode
	limit  int
	ready  wait.Signal
	live   chan struct{} // closed when first started

	mu          sync.Mutex
	watches     []*keyWatch
	watchedKeys []string // own key, blocker; empty: all
	keysAhead   []string // of a semaphore
	startCount  int      // of the watches
	isLive      bool
	closed      bool
	timer       *time.Timer
	polls       int
	isNext      bool // no other waiter is before it
}

// Watch returns when the servers watch. A waiter that is signalled must retry, which also moves
// the watch to its next blocker.
func (b *Backend) Watch(ctx context.Context, r driver.Request) (driver.Watch, error) {
	ctx, err := b.prepare(ctx)
	if err != nil {
		return driver.Watch{}, err
	}
	if err := b.validate(&r); err != nil {
		return driver.Watch{}, err
	}
	w := &releaseWatch{
		b: b, folder: b.folder(r.Name), owner: r.Owner, mode: r.Mode, limit: r.Limit,
		ready: wait.NewSignal(), live: make(chan struct{}),
	}
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

func (w *releaseWatch) start(name string) {
	s := &w.b.owners
	s.mu.Lock()
	o := s.byOwner[w.owner]
	inQueue := o != nil && o.name == name && o.created > 0 && o.blocker != ""
	if inQueue {
		s.waiting[w.owner] = w
	}
	s.mu.Unlock()
	if inQueue {
		w.follow(o)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.watches = []*keyWatch{w.watchFolder()}
}

func (w *releaseWatch) watchFolder() *keyWatch {
	return w.b.stream.watch(&keyWatch{keyHandler: w, key: w.folder, end: folderEnd(w.folder), puts: w.mode == driver.Read})
}

// follow watches the blocker of a waiter.
func (w *releaseWatch) follow(o *ownerState) {
	w.b.owners.mu.Lock()
	own, blocker, isNext, ahead := o.key, o.blocker, o.isNext, slices.Clone(o.keysAhead)
	w.b.owners.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.keysAhead = ahead
	if w.closed {
		return
	}
	keys := []string{own, blocker}
	if w.mode == driver.Counted { // any permit ahead may make room
		keys = []string{own, w.folder}
	}
	if slices.Equal(keys, w.watchedKeys) {
		return
	}
	for _, old := range w.watches {
		w.b.stream.unwatch(old)
	}
	w.watchedKeys, w.isNext, w.startCount, w.polls = keys, isNext, 0, 0
	w.watches = []*keyWatch{w.b.stream.watch(&keyWatch{keyHandler: w, key: own})}
	if w.mode == driver.Counted {
		w.watches = append(w.watches, w.watchFolder())
	} else {
		next := &keyWatch{keyHandler: w, key: blocker, puts: w.mode == driver.Read}
		w.watches = append(w.watches, w.b.stream.watch(next))
	}
}

// started signals once all watches are live: they don't report earlier events.
func (w *releaseWatch) started(bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.startCount++
	if w.closed || w.startCount < len(w.watches) {
		return
	}
	if !w.isLive {
		w.isLive = true
		close(w.live) // the caller of Watch retries then
	} else {
		w.ready.Notify()
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
		w.timer = time.AfterFunc(pollDelays[w.polls], w.poll)
		w.polls++
	}
}

func (w *releaseWatch) poll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ready.Notify()
	w.pollLater()
}

func (w *releaseWatch) event(ev *mvccpb.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mayUnblock(ev) {
		w.ready.Notify()
	}
}

// mayUnblock reports whether the waiter may be granted after an event, or has lost its own key.
func (w *releaseWatch) mayUnblock(ev *mvccpb.Event) bool {
	k, ok := parseKey(w.folder, ev.Kv)
	switch {
	case !ok:
		return false // a key of another lock, with a longer name
	case ev.Type == mvccpb.PUT:
		return k.mode == driver.Read // a downgrade
	case w.mode != driver.Counted || len(w.watchedKeys) == 0 || k.key == w.watchedKeys[0]:
		return true
	}
	i := slices.Index(w.keysAhead, k.key)
	if i >= 0 {
		w.keysAhead = slices.Delete(w.keysAhead, i, i+1)
	}
	return i >= 0 && len(w.keysAhead) < w.limit
}

func (w *releaseWatch) close() {
	s := &w.b.owners
	s.mu.Lock()
	if s.waiting[w.owner] == w {
		delete(s.waiting, w.owner)
	}
	s.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	if w.timer != nil {
		w.timer.Stop()
	}
	for _, old := range w.watches {
		w.b.stream.unwatch(old)
	}
	w.watches = nil
}

// watchHolds watches the keys of holds from their grants on. It verifies those whose watch was
// interrupted.
func (b *Backend) watchHolds(holds []*ownerState) {
	var unverified []*ownerState
	b.owners.mu.Lock()
	for _, o := range holds {
		switch {
		case o.ended || o.fence == 0 || o.onLost == nil:
		case o.watch == nil:
			o.watch = b.stream.watch(&keyWatch{keyHandler: o, key: o.key, start: int64(o.fence) + 1})
		case o.unverified:
			o.unverified = false
			unverified = append(unverified, o)
		}
	}
	b.owners.mu.Unlock()
	for some := range slices.Chunk(unverified, maxOps) {
		b.verifyHolds(some)
	}
}

// verifyHolds notifies holders whose keys are gone. Without an answer it leaves that to the next
// renewal.
func (b *Backend) verifyHolds(holds []*ownerState) {
	ctx, cancel := context.WithTimeout(b.stream.ctx, replyTimeout)
	defer cancel()
	missing, _, err := b.missingKeys(ctx, holds)
	if err != nil {
		return
	}
	for i, o := range holds {
		if missing[i] {
			b.owners.markLost(o)
		}
	}
}
