package sqlrow

import (
	"context"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
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

const (
	slice     = 5 * time.Second // how long a bell is listened to before the row is looked at again
	markLife  = 3 * slice       // what is said in the row holds for so long
	firstPoll = 5 * time.Millisecond
	maxPoll   = 100 * time.Millisecond
	patience  = 5 * time.Second // with the database
)

// rowWatcher looks at one row, and hears its bells, for all who wait for it in this
// backend. It lives as long as anybody does, and to the end of what it is listening to:
// a lock that is fought for is waited for again at once.
type rowWatcher struct {
	set      *watcherSet
	key      Key
	name     string
	listener Listener
	poll     time.Duration
	rev      int64 // as last seen

	// Guarded by the hub's mutex.
	waiters map[*rowWaiter]struct{}
	live    bool // what may let somebody in is signalled
	stale   bool // the row should be looked at again
	stop    context.CancelFunc
}

func newRowWatcher(h *watcherSet, k Key, name string) *rowWatcher {
	return &rowWatcher{
		set: h, key: k, name: name, listener: h.b.listen(k),
		waiters: map[*rowWaiter]struct{}{}, poll: firstPoll,
	}
}

// noListener is the ear of a backend without a bell.
type noListener struct{}

func (noListener) Arm(context.Context) error { return nil }

func (noListener) Wait(context.Context, string) (rang, silent bool) { return false, true }

func (noListener) Close() {}

func (b *Backend) listen(k Key) Listener {
	if b.notifier == nil {
		return noListener{}
	}
	return b.notifier.Listen(k)
}

func (l *rowWatcher) run() {
	defer l.listener.Close()
	for !l.set.removeUnused(l) {
		tag, silent, err := l.look()
		l.armAll(err)
		l.wait(tag, silent || err != nil)
	}
}

// wait waits for what makes another look at the row worthwhile.
func (l *rowWatcher) wait(tag string, silent bool) {
	ctx, cancel := context.WithTimeout(l.set.b.ctx, slice)
	defer cancel()
	if l.outdated(cancel) {
		return
	}
	rang := false
	if !silent {
		rang, silent = l.listener.Wait(ctx, tag)
	}
	switch {
	case rang:
		l.set.signal(l)
	case silent:
		l.pause(ctx)
	}
}

// outdated reports whether the last look came too early; if not, a nudge calls stop.
func (l *rowWatcher) outdated(stop context.CancelFunc) bool {
	l.set.mu.Lock()
	defer l.set.mu.Unlock()
	l.stop = stop
	return l.stale
}

// lookAgain makes the listener look at the row. The hub's mutex is held.
func (l *rowWatcher) lookAgain() {
	l.stale = true
	if l.stop != nil {
		l.stop()
	}
}

// pause waits for the next look at a row of which nothing is heard.
func (l *rowWatcher) pause(ctx context.Context) {
	t := time.NewTimer(l.poll)
	defer t.Stop()
	l.poll = min(2*l.poll, maxPoll)
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// look reads the row, in which it says that somebody listens, and signals those whom
// nobody is in the way of. The tag is that of the bell to listen to.
func (l *rowWatcher) look() (tag string, silent bool, err error) {
	l.refresh()
	silent = l.arm() != nil
	ctx, cancel := context.WithTimeout(l.set.b.ctx, patience)
	defer cancel()
	s, err := l.readMarked(ctx)
	if err != nil {
		return "", false, err
	}
	if s.row.Rev != l.rev {
		l.rev, l.poll = s.row.Rev, firstPoll
	}
	tag, found := l.wakeUnblocked(s)
	return tag, silent || !found, nil
}

// arm has a time of its own: who can't hear can look.
func (l *rowWatcher) arm() error {
	ctx, cancel := context.WithTimeout(l.set.b.ctx, patience)
	defer cancel()
	return l.listener.Arm(ctx)
}

func (l *rowWatcher) refresh() {
	l.set.mu.Lock()
	defer l.set.mu.Unlock()
	l.stale = false
}

// readMarked reads the row as it is when it says that somebody listens.
func (l *rowWatcher) readMarked(ctx context.Context) (*state, error) {
	b := l.set.b
	s, err := b.look(ctx, l.name)
	if err != nil || b.notifier == nil || s.row.Rev == 0 || s.row.Waiting > (s.now+int64(markLife/2))/micro {
		return s, err
	}
	if err := b.dialect.Mark(ctx, l.key, markLife); err != nil {
		return nil, err
	}
	return b.look(ctx, l.name)
}

// wakeUnblocked signals the watches that nobody is in the way of, and finds the bell for the
// one that fewest are in the way of: those behind it are woken by its own release, here.
func (l *rowWatcher) wakeUnblocked(s *state) (tag string, found bool) {
	l.set.mu.Lock()
	defer l.set.mu.Unlock()
	var ahead []claims.Claim
	var mode driver.Mode
	for w := range l.waiters {
		blockers := s.Blockers(w.request)
		if len(blockers) == 0 {
			w.wake()
		} else if ahead == nil || len(blockers) < len(ahead) {
			ahead, mode = blockers, w.request.Mode
		}
	}
	return addressOf(ahead, mode)
}

// addressOf is the bell to listen to. Whom all must make way for can wait for the last of
// them; a permit may come from any, so there must not be several bells.
func addressOf(ahead []claims.Claim, mode driver.Mode) (tag string, found bool) {
	if len(ahead) == 0 {
		return "", false
	}
	tag = ahead[len(ahead)-1].Address
	for _, c := range ahead {
		if mode == driver.Counted && c.Address != tag {
			return "", false
		}
	}
	return tag, true
}

// armAll answers those who wait to be armed.
func (l *rowWatcher) armAll(err error) {
	l.set.mu.Lock()
	defer l.set.mu.Unlock()
	l.live = err == nil
	for w := range l.waiters {
		w.arm(err)
	}
}

// wake signals all. The hub's mutex is held.
func (l *rowWatcher) wake() {
	for w := range l.waiters {
		w.wake()
	}
}
