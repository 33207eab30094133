package zklock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
	"github.com/distlock/distlock/internal/zk"
)

// Watch watches the node whose end may let the Owner in. An Owner without a claim waits for an
// empty queue, or, if it is about to queue, for its first attempt: a refused attempt watches the node
// that blocks it. After a notification the watch is set again by the next refusal, or after
// rearmDelay.
func (b *Backend) Watch(ctx context.Context, r driver.Request) (driver.Watch, error) {
	if err := b.checkRequest(r); err != nil {
		return driver.Watch{}, err
	}
	w := &queueWatch{b: b, r: r, ready: wait.NewSignal()}
	if err := w.begin(ctx); err != nil {
		w.close()
		return driver.Watch{}, b.fail("watch", r.Name, err)
	}
	if !b.addWatch(w) {
		w.close()
		return driver.Watch{}, driver.ErrClosed
	}
	return driver.Watch{Ready: w.ready, Close: w.close}, nil
}

// addWatch returns false if the backend is closed.
func (b *Backend) addWatch(w *queueWatch) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life.Err() != nil {
		return false
	}
	b.watches[w.r.Owner] = w
	return true
}

// watchOf returns an Owner's watch, or nil.
func (b *Backend) watchOf(owner string) *queueWatch {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.watches[owner]
}

// queueWatch is a waiter's watch.
type queueWatch struct {
	b     *Backend
	r     driver.Request
	ready wait.Signal

	arming sync.Mutex // held while the watch is set; guards:
	s      *session
	queued bool // the Owner has a claim

	mu     sync.Mutex
	closed bool
	fired  bool        // since the watch was last set
	armed  []*zk.Watch // at the servers; empty once it has fired
	node   string      // whose end armed reports; "" if it reports more
	timer  *time.Timer // calls rearm
}

// rearmDelay is when a watch is set again if the Owner makes no attempt until then.
const rearmDelay = 100 * time.Millisecond

// begin arms the watch, or leaves that to the Owner's first attempt.
func (w *queueWatch) begin(ctx context.Context) error {
	if w.r.Queue && w.b.claimOf(w.r.Hold) == nil {
		w.startTimer()
		return ctx.Err()
	}
	return w.arm(ctx)
}

// notify wakes the Owner, and disarms the watch.
func (w *queueWatch) notify() {
	w.disarm(func() { w.fired = true })
	w.startTimer()
	w.ready.Notify()
}

// disarm cancels the servers' watches and the timer, and calls change with w.mu held.
func (w *queueWatch) disarm(change func()) {
	w.mu.Lock()
	old := w.armed
	w.armed, w.node = nil, ""
	w.endTimer()
	change()
	w.mu.Unlock()
	for _, zw := range old {
		zw.Cancel()
	}
}

// startTimer has the watch set again after rearmDelay, unless it is set or closed.
func (w *queueWatch) startTimer() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed && len(w.armed) == 0 && w.timer == nil {
		w.timer = time.AfterFunc(rearmDelay, func() { w.b.goTask(w.rearm) })
	}
}

// stopTimer is for the time of an attempt.
func (w *queueWatch) stopTimer() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.endTimer()
}

// endTimer needs w.mu.
func (w *queueWatch) endTimer() {
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
}

// rearm arms the watch if it is not armed.
func (w *queueWatch) rearm() {
	w.stopTimer()
	if w.idle() && w.arm(w.b.life) != nil {
		w.notify()
	}
}

// idle reports whether the watch is open and not armed.
func (w *queueWatch) idle() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.closed && len(w.armed) == 0
}

func (w *queueWatch) close() {
	w.disarm(func() { w.closed = true })
	w.b.mu.Lock()
	defer w.b.mu.Unlock()
	if w.b.watches[w.r.Owner] == w {
		delete(w.b.watches, w.r.Owner)
	}
}

// arm watches the nodes that block the Owner. If there are none it notifies the Owner.
func (w *queueWatch) arm(ctx context.Context) error {
	w.arming.Lock()
	defer w.arming.Unlock()
	c := w.b.claimOf(w.r.Hold)
	if w.queued = c != nil; w.queued {
		w.s = c.s
	} else {
		s, err := w.b.session(ctx, w.r.TTL)
		if err != nil {
			return err
		}
		w.s = s
	}
	for {
		w.disarm(func() { w.fired = false })
		free, err := w.watchLock(ctx)
		switch {
		case errors.Is(err, zk.ErrNoNode):
			continue // the node ended before it was watched
		case err != nil:
			return err
		case free:
			w.notify()
		}
		return nil
	}
}

// watchEnd watches a node that blocks the Owner, for an attempt that has just listed it. It reports
// whether that node has ended. If it can't be watched the watch stays idle.
func (w *queueWatch) watchEnd(ctx context.Context, s *session, path string) (ended bool) {
	if !w.arming.TryLock() {
		return false // the goroutine that arms the watch lists the nodes too
	}
	defer w.arming.Unlock()
	if w.watches(path) {
		return false
	}
	w.disarm(func() { w.fired = false })
	w.s = s
	return errors.Is(w.watchNode(ctx, path), zk.ErrNoNode)
}

func (w *queueWatch) watches(path string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.armed) > 0 && w.node == path
}

// keep records a watch at the servers. If the queueWatch has fired meanwhile it cancels the watch:
// that may be the one that fired.
func (w *queueWatch) keep(zw *zk.Watch, node string) {
	w.mu.Lock()
	late := w.closed || w.fired
	if !late {
		w.armed, w.node = append(w.armed, zw), node
	}
	w.mu.Unlock()
	if late {
		zw.Cancel()
	}
}

// watchLock watches what blocks the Owner, or reports that nothing does.
func (w *queueWatch) watchLock(ctx context.Context) (free bool, err error) {
	if w.r.Mode == driver.Counted {
		return w.watchPermits(ctx)
	}
	return w.watchBlocker(ctx, pathOf(w.r.Name), w.r.Mode)
}

// watchBlocker watches the node that blocks the Owner's node below dir.
func (w *queueWatch) watchBlocker(ctx context.Context, dir string, m driver.Mode) (free bool, err error) {
	l, _, err := w.s.list(ctx, dir)
	if err != nil {
		return false, err
	}
	me := l.nodes.indexOfOwner(w.r.Owner)
	if me < 0 && w.queued {
		return true, nil // the next attempt makes a new node
	}
	if me < 0 {
		me = len(l.nodes)
	}
	blocker, is := l.nodes.blocker(me, m)
	if !is {
		return true, nil
	}
	return false, w.watchNode(ctx, dir+"/"+blocker.name)
}

// watchNode watches the end of a node. It lists the node's children, which it can't have: a watch of
// its data would also report that its holder acquires again.
func (w *queueWatch) watchNode(ctx context.Context, path string) error {
	_, _, zw, err := w.s.conn.ChildrenW(ctx, path, w.changed)
	if err == nil {
		w.keep(zw, path)
	}
	return err
}

// changed is called by the session's connection.
func (w *queueWatch) changed(zk.Event) { w.notify() }

// watchPermits watches the blocker in the queue, or the leases at the head of the queue.
func (w *queueWatch) watchPermits(ctx context.Context) (free bool, err error) {
	if !w.queued {
		leases, err := w.watchChildren(ctx, leasesNode)
		if err != nil {
			return false, err
		}
		locks, err := w.watchChildren(ctx, locksNode)
		return len(leases)+len(locks) < w.r.Limit, err
	}
	if free, err = w.watchBlocker(ctx, pathOf(w.r.Name)+"/"+locksNode, driver.Exclusive); err != nil || !free {
		return false, err
	}
	leases, err := w.watchChildren(ctx, leasesNode)
	return leases.indexOfOwner(w.r.Owner) < w.r.Limit, err // without a lease (-1) the next attempt makes one
}

// watchChildren lists and watches the nodes below a part of the lock, which may not exist.
func (w *queueWatch) watchChildren(ctx context.Context, part string) (nodeList, error) {
	children, _, zw, err := w.s.conn.ChildrenW(ctx, pathOf(w.r.Name)+"/"+part, w.changed)
	if errors.Is(err, zk.ErrNoNode) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	w.keep(zw, "")
	return readListing(children).nodes, nil
}

// watchDelay is the least age of a hold before its node is watched. Most holds end sooner, and need
// no watch. Revocable holds are watched at once.
const watchDelay = 100 * time.Millisecond

// scheduleWatch watches a hold's node, after watchDelay: an operator may delete it, or a client may
// revoke the lock.
func (c *claim) scheduleWatch() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.isHold() || c.watched || c.heldAt == "" {
		return
	}
	c.watched = true
	delay := watchDelay
	if c.onRevoke != nil {
		delay = 0
	}
	c.watchTimer = time.AfterFunc(delay, func() { c.s.b.goTask(c.watchNode) })
}

// watchNode reads and watches the node of a hold.
func (c *claim) watchNode() {
	b := c.s.b
	node := c.watchedNode()
	if node == "" {
		return
	}
	data, _, _, err := c.s.conn.GetW(b.life, node, func(e zk.Event) {
		if e == zk.EventDeleted {
			b.goTask(func() { c.nodeEnded(node) })
			return
		}
		c.watchEnded(node)
	})
	switch {
	case err == nil:
		if string(data) == revokeData {
			c.notifyRevoke()
		}
	case errors.Is(err, zk.ErrNoNode):
		c.nodeEnded(node)
	case !sessionOver(err):
		wait.Sleep(b.life, watchDelay) // the node may be one that this user can't read
		c.watchEnded(node)
	}
}

// nodeEnded loses the hold if its node is the one that was deleted.
func (c *claim) nodeEnded(node string) {
	if c.watchedNode() == node {
		c.markGone(true)
		c.s.b.removeClaim(c)
	}
}

// watchEnded schedules the next watch of a node, if it still is the claim's.
func (c *claim) watchEnded(node string) {
	c.mu.Lock()
	if c.heldAt == node {
		c.watched = false
	}
	c.mu.Unlock()
	c.scheduleWatch()
}

// unwatchHeld is for a hold whose node is about to be replaced: the old node's end is no loss.
func (c *claim) unwatchHeld() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heldAt, c.watched = "", false
}

// watchHeld is for a hold whose node is known again.
func (c *claim) watchHeld() {
	c.mu.Lock()
	c.heldAt = c.node
	c.mu.Unlock()
	c.scheduleWatch()
}

// watchedNode returns the node of a hold, or "" if the claim is none.
func (c *claim) watchedNode() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.isHold() {
		return ""
	}
	return c.heldAt
}

// notifyRevoke notifies the holder of a revocation, once.
func (c *claim) notifyRevoke() {
	c.mu.Lock()
	onRevoke := c.onRevoke
	if c.revokeSent || c.released || c.gone {
		onRevoke = nil
	}
	c.revokeSent = c.revokeSent || onRevoke != nil
	c.mu.Unlock()
	if onRevoke != nil {
		onRevoke()
	}
}
