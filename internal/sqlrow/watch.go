package sqlrow

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
	"github.com/distlock/distlock/internal/wait"
)

// Watch wakes r's owner when a claim on the lock is released. All waiters for a lock in this backend
// share one rowWatcher, which marks the row as waited for.
func (b *Backend) Watch(ctx context.Context, r driver.Request) (driver.Watch, error) {
	w, err := b.watch(ctx, r)
	return w, b.wrap("watch", r.Name, err)
}

func (b *Backend) watch(ctx context.Context, r driver.Request) (driver.Watch, error) {
	if err := b.open(ctx); err != nil {
		return driver.Watch{}, err
	}
	w := &rowWaiter{request: r, ready: wait.NewSignal(), armed: make(chan error, 1)}
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

// rowWaiter is one call of Watch.
type rowWaiter struct {
	request driver.Request
	ready   wait.Signal
	armed   chan error // Watch receives one result
	next    bool       // its turn is likely to come with the next release; guarded by the set's mutex
}

func (w *rowWaiter) arm(err error) {
	select {
	case w.armed <- err:
	default:
	}
}

// watcherSet has a rowWatcher for each lock with waiters in this backend.
type watcherSet struct {
	b  *Backend
	wg wait.Group

	mu    sync.Mutex
	byKey map[Key]*rowWatcher
}

func (set *watcherSet) add(w *rowWaiter) (*rowWatcher, error) {
	set.mu.Lock()
	defer set.mu.Unlock()
	if set.b.ctx.Err() != nil {
		return nil, driver.ErrClosed
	}
	k := KeyOf(w.request.Name)
	l := set.byKey[k]
	if l == nil {
		l = &rowWatcher{
			set: set, key: k, name: w.request.Name, listener: set.b.notifier.Listen(k),
			waiters: map[*rowWaiter]struct{}{}, poll: firstPoll,
		}
		set.byKey[k] = l
		set.wg.Go(l.run)
	}
	l.waiters[w] = struct{}{}
	switch pushed := set.b.options.Pushed; {
	case l.live && l.hearsAll:
		w.arm(nil)
	case w.request.Queue && !pushed:
		// Whatever changes from now on, a look that comes later sees it: best the look that follows the owner's attempt.
		w.arm(nil)
		l.expecting = true
		l.lookAgain()
	case l.live:
		w.arm(nil)
		l.lookAgain()
	}
	return l, nil
}

func (set *watcherSet) remove(l *rowWatcher, w *rowWaiter) {
	set.mu.Lock()
	defer set.mu.Unlock()
	delete(l.waiters, w)
}

// removeUnused removes a rowWatcher without waiters, which then ends.
func (set *watcherSet) removeUnused(l *rowWatcher) bool {
	set.mu.Lock()
	defer set.mu.Unlock()
	if len(l.waiters) > 0 && set.b.ctx.Err() == nil {
		return false
	}
	delete(set.byKey, l.key)
	return true
}

// watched reports whether there are waiters for k in this backend, or were a moment ago.
func (set *watcherSet) watched(k Key) bool {
	set.mu.Lock()
	defer set.mu.Unlock()
	return set.byKey[k] != nil
}

// queued reports whether waiters of this backend are in the queue for k.
func (set *watcherSet) queued(k Key) bool {
	set.mu.Lock()
	defer set.mu.Unlock()
	l := set.byKey[k]
	if l == nil {
		return false
	}
	for w := range l.waiters {
		if w.request.Queue {
			return true
		}
	}
	return false
}

// wake tells the rowWatcher of k about a change of its row.
func (set *watcherSet) wake(k Key) {
	set.mu.Lock()
	defer set.mu.Unlock()
	if l := set.byKey[k]; l != nil {
		l.wake()
	}
}

// saw tells the rowWatcher of k what the row is now.
func (set *watcherSet) saw(k Key, s *state) {
	set.mu.Lock()
	defer set.mu.Unlock()
	if l := set.byKey[k]; l != nil && l.expecting {
		l.seen, l.expecting = s, false
		l.lookAgain()
	}
}

func (set *watcherSet) wakeOwner(k Key, end string) {
	set.mu.Lock()
	defer set.mu.Unlock()
	l := set.byKey[k]
	if l == nil {
		return
	}
	for w := range l.waiters {
		if strings.HasSuffix(w.request.Owner, end) {
			w.ready.Notify()
		}
	}
}

func (set *watcherSet) wakeAll() {
	set.mu.Lock()
	defer set.mu.Unlock()
	for _, l := range set.byKey {
		l.wake()
	}
}

func (set *watcherSet) close() {
	set.mu.Lock()
	set.b.cancel()
	set.mu.Unlock()
	set.wg.Wait()
}

const (
	slice     = 5 * time.Second // how long a notification is waited for before the row is read again
	markLife  = 3 * slice       // what is said in the row holds for so long
	firstPoll = 5 * time.Millisecond
	maxPoll   = 100 * time.Millisecond
	patience  = 5 * time.Second // with the database
)

// rowWatcher reads one row and waits for notifications about it, for all its waiters in this
// backend. It lasts while there are waiters, and until the notification that it waits for: a
// contended lock is waited for again at once.
type rowWatcher struct {
	set      *watcherSet
	key      Key
	name     string
	listener Listener
	poll     time.Duration
	rev      int64 // as last seen

	// Guarded by the set's mutex.
	waiters  map[*rowWaiter]struct{}
	live     bool // releases are noticed
	hearsAll bool // not only those at the address of some claim
	stale    bool // the row should be looked at again
	stop     context.CancelFunc

	expecting bool   // a waiter is about to make an attempt
	seen      *state // the row as the attempt has left it
}

// polling is the Notifier of a backend whose waiters poll.
type polling struct{}

func (polling) Address(time.Duration) string { return "" }
func (polling) Notify(Key)                   {}
func (polling) Listen(Key) Listener          { return silence{} }
func (polling) Close() error                 { return nil }

// silence is a Listener without notifications.
type silence struct{}

func (silence) Arm(context.Context) error                            { return nil }
func (silence) Wait(context.Context, string) (notified, silent bool) { return false, true }
func (silence) Close()                                               {}

func (rw *rowWatcher) run() {
	defer rw.listener.Close()
	for !rw.set.removeUnused(rw) {
		rw.expect()
		address, silent, err := rw.check()
		rw.armAll(err)
		rw.wait(address, silent || err != nil)
	}
}

// expect waits for what a waiter's attempt is about to see, so that the row need not be read once more.
func (rw *rowWatcher) expect() {
	ctx, cancel := context.WithTimeout(rw.set.b.ctx, firstPoll)
	defer cancel()
	rw.set.mu.Lock()
	expecting := rw.expecting
	rw.stop = cancel
	rw.set.mu.Unlock()
	if expecting {
		<-ctx.Done()
	}
	rw.set.mu.Lock()
	rw.expecting, rw.stop = false, nil
	rw.set.mu.Unlock()
}

// wait waits until the row should be read again.
func (rw *rowWatcher) wait(address string, silent bool) {
	ctx, cancel := context.WithTimeout(rw.set.b.ctx, slice)
	defer cancel()
	if rw.outdated(cancel, rw.set.b.options.Pushed && !silent) {
		return
	}
	notified := false
	if !silent {
		notified, silent = rw.listener.Wait(ctx, address)
	}
	switch {
	case notified && rw.wakeNext():
		// If that waiter is granted the lock, nothing needs to be read.
		_ = wait.Sleep(ctx, firstPoll)
	case notified:
	case silent:
		// The row is polled, ever more slowly while it does not change.
		_ = wait.Sleep(ctx, rw.poll)
		rw.poll = min(2*rw.poll, maxPoll)
	}
}

// wakeNext wakes the waiters whose turn is likely to have come. It reports whether there are any.
func (rw *rowWatcher) wakeNext() (found bool) {
	rw.set.mu.Lock()
	defer rw.set.mu.Unlock()
	for w := range rw.waiters {
		if w.next {
			w.ready.Notify()
			found = true
		}
	}
	return found
}

// outdated reports whether the row should be read again at once. If not, lookAgain calls stop.
func (rw *rowWatcher) outdated(stop context.CancelFunc, hearsAll bool) bool {
	rw.set.mu.Lock()
	defer rw.set.mu.Unlock()
	rw.stop, rw.hearsAll = stop, hearsAll
	return rw.stale
}

// lookAgain makes the rowWatcher read the row. The set's mutex is held.
func (rw *rowWatcher) lookAgain() {
	rw.stale = true
	if rw.stop != nil {
		rw.stop()
	}
}

// check reads the row, marks it as waited for, and wakes the waiters that nothing blocks. It returns
// the address to wait for.
func (rw *rowWatcher) check() (address string, silent bool, err error) {
	rw.set.mu.Lock()
	s := rw.seen
	rw.stale, rw.seen = false, nil
	rw.set.mu.Unlock()
	silent = rw.arm() != nil
	ctx, cancel := context.WithTimeout(rw.set.b.ctx, patience)
	defer cancel()
	s, err = rw.readMarked(ctx, s)
	if err != nil {
		return "", false, err
	}
	if s.row.Rev != rw.rev {
		rw.rev, rw.poll = s.row.Rev, firstPoll
	}
	address, found := rw.wakeUnblocked(s)
	return address, silent || !found, nil
}

// arm has a timeout of its own: a row can be polled without notifications.
func (rw *rowWatcher) arm() error {
	ctx, cancel := context.WithTimeout(rw.set.b.ctx, patience)
	defer cancel()
	return rw.listener.Arm(ctx)
}

// readMarked marks the row as waited for, and returns it as it is after that. seen is the row as it was a moment ago, or nil.
func (rw *rowWatcher) readMarked(ctx context.Context, seen *state) (s *state, err error) {
	b := rw.set.b
	if s = seen; s == nil {
		s, err = b.readRow(ctx, rw.name)
	}
	if err != nil || b.options.Notifier == nil || s.row.Rev == 0 || s.row.Waiting > (s.now+int64(markLife/2))/micro {
		return s, err
	}
	if err := b.dialect.Mark(ctx, rw.key, markLife); err != nil {
		return nil, err
	}
	return b.readRow(ctx, rw.name)
}

// wakeUnblocked wakes the waiters that nothing blocks. It returns the address to wait for on behalf
// of the waiter with the fewest claims ahead; this backend itself wakes those behind it.
func (rw *rowWatcher) wakeUnblocked(s *state) (address string, found bool) {
	rw.set.mu.Lock()
	defer rw.set.mu.Unlock()
	var ahead []*claims.Claim
	var first *rowWaiter // of those that are blocked
	for w := range rw.waiters {
		blockers := s.Blockers(&w.request)
		w.next = len(blockers) == 0 || blockers[len(blockers)-1].Holds()
		if len(blockers) == 0 {
			w.ready.Notify()
		} else if ahead == nil || len(blockers) < len(ahead) {
			ahead, first = blockers, w
		}
	}
	if rw.set.b.options.Pushed {
		return "", ahead != nil
	}
	if first == nil {
		return "", false
	}
	// Whoever is just ahead notifies when it releases what it has got meanwhile.
	first.next = true
	return addressOf(ahead, first.request.Mode)
}

// addressOf returns the address to wait for. A waiter that all claims must make way for waits for
// the last of them. A permit may come from any of them, so there must not be several addresses.
func addressOf(ahead []*claims.Claim, mode driver.Mode) (address string, found bool) {
	if len(ahead) == 0 {
		return "", false
	}
	address = ahead[len(ahead)-1].Address
	for _, c := range ahead {
		if mode == driver.Counted && c.Address != address {
			return "", false
		}
	}
	return address, true
}

// armAll returns the result of arming to all calls of Watch.
func (rw *rowWatcher) armAll(err error) {
	rw.set.mu.Lock()
	defer rw.set.mu.Unlock()
	rw.live = err == nil
	for w := range rw.waiters {
		w.arm(err)
	}
}

// wake makes the rowWatcher read the row, and wake the waiters that it lets in. What an attempt has seen is older. The set's
// mutex is held.
func (rw *rowWatcher) wake() {
	if len(rw.waiters) > 0 {
		rw.expecting, rw.seen = false, nil
		rw.lookAgain()
	}
}
