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

// crowd is the number of keys ahead from which on a waiter watches its blocker only: every event would
// go to every waiter. With fewer it watches the folder, so that the watch can start before the waiter
// has a key, and needs no change when the blocker does.
const crowd = 32

// releaseWatch waits for one Owner. It watches all keys of the lock, or, in a long queue, the Owner's
// key and the key of its blocker. Once the Owner is in the queue, only what concerns it is signalled.
type releaseWatch struct {
	b      *Backend
	folder string
	owner  string
	mode   driver.Mode
	queue  bool // the Owner is in the queue, or will be
	ready  wait.Signal
	live   chan struct{} // closed when first started

	mu         sync.Mutex
	watches    []*keyWatch
	crowded    bool     // it watches its own key and its blocker's only
	own        string   // key; empty: not in the queue
	blocker    string   // key
	blockers   []string // keys that are not gone yet, as of since and of the events
	enough     int      // fewer let it in
	since      int64    // revision
	recent     []keyEvent
	missed     bool // events, since the last attempt
	startCount int  // of the watches
	isLive     bool
	closed     bool
	timer      *time.Timer
	polls      int
	isNext     bool // no other waiter is before it
	prompt     bool // the watch of the folder has sent an event, so the server serves it at once
}

// keyEvent is an event that may have arrived before the answer of the attempt that it concerns.
type keyEvent struct {
	key      string
	revision int64
}

// recentEvents is how many events a watch remembers.
const recentEvents = 16

// Watch returns when the servers watch. A waiter that is signalled must retry, which also moves
// the watch to its next blocker.
func (b *Backend) Watch(ctx context.Context, r driver.Request) (driver.Watch, error) {
	ctx, err := b.prepare(ctx)
	if err != nil {
		return driver.Watch{}, err
	}
	if err := r.Validate(b.caps); err != nil {
		return driver.Watch{}, err
	}
	w := &releaseWatch{
		b: b, folder: b.folder(r.Name), owner: r.Owner, mode: r.Mode, queue: r.Queue,
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
	if inQueue || w.queue {
		s.waiting[w.owner] = w
	}
	s.mu.Unlock()
	if inQueue {
		w.follow(o)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.watches) == 0 { // a concurrent call may have followed
		w.watch(w.folderWatch())
	}
}

func (w *releaseWatch) folderWatch() *keyWatch {
	return &keyWatch{keyHandler: w, key: w.folder, end: folderEnd(w.folder), puts: w.mode == driver.Read}
}

// watch replaces the watches. The mutex is held.
func (w *releaseWatch) watch(all ...*keyWatch) {
	for _, old := range w.watches {
		w.b.stream.unwatch(old)
	}
	w.startCount, w.watches, w.prompt = 0, all, false
	for _, next := range all {
		w.b.stream.watch(next)
	}
}

// follow waits for the blocker of a waiter, as an attempt has found it.
func (w *releaseWatch) follow(o *ownerState) {
	w.b.owners.mu.Lock()
	own, blocker, isNext, revision := o.key, o.blocker, o.isNext, o.blockedAt
	blockers, enough := slices.Clone(o.blockers), o.enough
	crowded := o.ahead > crowd && w.mode != driver.Counted
	w.b.owners.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return
	}
	moved := own != w.own || blocker != w.blocker
	if !moved {
		crowded = w.crowded
	}
	if crowded {
		blockers = []string{blocker}
	}
	w.own, w.blocker, w.isNext, w.blockers, w.enough, w.since = own, blocker, isNext, blockers, enough, revision
	w.signalSince()
	if !moved {
		return
	}
	w.polls = 0
	switch {
	case crowded:
		w.crowded = true
		w.watch(&keyWatch{keyHandler: w, key: own}, &keyWatch{keyHandler: w, key: blocker, puts: w.mode == driver.Read})
	case len(w.watches) == 0 || w.crowded:
		w.crowded = false
		w.watch(w.folderWatch())
	case w.isNext:
		w.pollLater()
	}
}

// signalSince replaces a signal for what an attempt has seen by one for what came later. The mutex is held.
func (w *releaseWatch) signalSince() {
	select {
	case <-w.ready:
	default:
	}
	signal := w.missed || len(w.recent) == recentEvents && w.recent[0].revision > w.since
	for _, e := range w.recent {
		signal = w.lets(e) || signal
	}
	if signal {
		w.ready.Notify()
	}
	w.missed = false
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
		w.missed = true
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
	if w.polls < len(pollDelays) && !w.closed && !w.prompt {
		w.timer = time.AfterFunc(pollDelays[w.polls], w.poll)
		w.polls++
	}
}

func (w *releaseWatch) poll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.prompt {
		w.ready.Notify()
		w.pollLater()
	}
}

func (w *releaseWatch) event(ev *mvccpb.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.prompt = w.prompt || !w.crowded
	if w.mayUnblock(ev) {
		w.ready.Notify()
	}
}

// mayUnblock reports whether the waiter may be granted after an event, or has lost its own key.
func (w *releaseWatch) mayUnblock(ev *mvccpb.Event) bool {
	k, ok := parseKey(w.folder, ev.Kv)
	if !ok || ev.Type == mvccpb.PUT && k.mode != driver.Read {
		return false // a key of another lock, with a longer name; no downgrade
	}
	if len(w.recent) == recentEvents {
		w.recent = slices.Delete(w.recent, 0, 1)
	}
	e := keyEvent{k.key, ev.Kv.ModRevision}
	w.recent = append(w.recent, e)
	return w.own == "" || w.lets(e)
}

// lets reports whether the waiter may be granted after the end of a key, or it was its own. The mutex is held.
func (w *releaseWatch) lets(e keyEvent) bool {
	switch i := slices.Index(w.blockers, e.key); {
	case e.revision <= w.since: // of an earlier key with the same lease
		return false
	case e.key == w.own:
		return true
	case i < 0:
		return false
	default:
		w.blockers = slices.Delete(w.blockers, i, i+1)
		return len(w.blockers) < w.enough
	}
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
	var keys []keyWrite
	b.owners.mu.Lock()
	for _, o := range holds {
		switch {
		case o.ended || o.fence == 0 || o.onLost == nil:
		case o.watch == nil:
			o.watch = b.stream.watch(&keyWatch{keyHandler: o, key: o.key, start: int64(o.fence) + 1})
		case o.unverified:
			o.unverified = false
			unverified, keys = append(unverified, o), append(keys, o.keyWrite)
		}
	}
	b.owners.mu.Unlock()
	for len(keys) > 0 {
		n := min(len(keys), maxOps)
		b.verifyHolds(unverified[:n], keys[:n])
		unverified, keys = unverified[n:], keys[n:]
	}
}

// verifyHolds notifies holders whose keys are gone. Without an answer it leaves that to the next
// renewal.
func (b *Backend) verifyHolds(holds []*ownerState, keys []keyWrite) {
	ctx, cancel := context.WithTimeout(b.stream.ctx, replyTimeout)
	defer cancel()
	changes, _, err := b.readKeys(ctx, keys)
	if err != nil {
		return
	}
	for i, o := range holds {
		if changes[i] == keyGone {
			b.owners.markLost(o)
		}
	}
}
