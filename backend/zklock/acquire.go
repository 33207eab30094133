package zklock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/zk"
)

// maxTries bounds how often a call starts again because its node or its session ended.
const maxTries = 3

// Acquire makes one attempt. A request with Queue makes its node at once: that is one round trip if
// the lock is free. A try without Queue looks first, so as not to delay the queue. ZooKeeper can't
// do both in one step: two concurrent tries may both be refused.
func (b *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	err := b.checkRequest(r)
	if err != nil {
		return driver.Grant{}, err
	}
	a := &attempt{b: b, r: r, start: time.Now(), w: b.watchOf(r.Owner)}
	if a.w != nil {
		a.w.stopTimer()
	}
	for range maxTries {
		var g driver.Grant
		g, err = a.try(ctx)
		if err == nil || errors.Is(err, driver.ErrHeld) {
			b.worked.Store(true)
		}
		if err == nil {
			return g, nil
		}
		if !errors.Is(err, errNodeGone) && !sessionOver(err) {
			break
		}
	}
	if a.w != nil {
		a.w.startTimer()
	}
	return driver.Grant{}, b.fail("acquire", r.Name, err)
}

// attempt is one call of Acquire.
type attempt struct {
	b     *Backend
	r     driver.Request
	start time.Time
	w     *queueWatch // of the Owner, or nil
	c     *claim
	fresh bool // the claim was made by this attempt
}

func (a *attempt) try(ctx context.Context) (driver.Grant, error) {
	if err := a.findClaim(ctx); err != nil {
		if a.c == nil {
			err = driver.Unsent(a.b.firstCall(err))
		}
		return driver.Grant{}, err
	}
	g, err := a.advance(ctx)
	switch c := a.c; {
	case err == nil:
		return g, nil
	case sessionOver(err):
		c.s.awaitEnd(ctx)
		fallthrough
	case errors.Is(err, errNodeGone):
		c.markGone(true)
		a.b.removeClaim(c)
	case a.fresh && !c.unknown && c.node == "" && c.queueNode == "":
		a.b.removeClaim(c)
		err = driver.Unsent(a.b.firstCall(err))
	case driver.Final(a.b.fail("", "", a.b.firstCall(err))) && !c.holds():
		return g, a.undo(ctx, a.b.firstCall(err))
	}
	return g, err
}

// findClaim finds the Owner's claim, or makes one in an open session.
func (a *attempt) findClaim(ctx context.Context) error {
	a.c, a.fresh = a.b.claimOf(a.r.Hold), false
	if a.c != nil {
		if !a.c.unknown {
			return nil
		}
		err := a.c.resolve(ctx)
		if err == nil {
			a.c.watchHeld()
		}
		return err
	}
	s, err := a.b.session(ctx, a.r.TTL)
	if err != nil {
		return err
	}
	if !a.r.Queue {
		if err := a.peek(ctx, s); err != nil {
			return err
		}
	}
	a.fresh = true
	a.c, err = a.b.addClaim(s, a.r)
	return err
}

// peek refuses a try if the lock isn't free. A server that lags behind the others refuses nothing by itself.
func (a *attempt) peek(ctx context.Context, s *session) error {
	look := a.peekNodes
	if a.r.Mode == driver.Counted {
		look = a.peekPermits
	}
	if look(ctx, s.list) == nil {
		return nil
	}
	return look(ctx, s.listCommitted)
}

func (a *attempt) peekNodes(ctx context.Context, list lister) error {
	path := pathOf(a.r.Name)
	l, _, err := list(ctx, path)
	if err != nil {
		return err
	}
	if n, is := l.nodes.otherKind(len(l.nodes), a.r.Mode); is {
		return conflictError(path, n)
	}
	if _, is := l.nodes.blocker(len(l.nodes), a.r.Mode); is {
		return heldBy(l.nodes[0])
	}
	return nil
}

// advance takes the next step from the claim's state.
func (a *attempt) advance(ctx context.Context) (driver.Grant, error) {
	c := a.c
	switch {
	case c.holds() && c.node == "":
		return driver.Grant{}, a.lost() // during a downgrade
	case c.holds() && c.mode == driver.Write && a.r.Mode == driver.Read:
		return a.downgrade(ctx)
	case c.mode != a.r.Mode:
		return driver.Grant{}, fmt.Errorf("%w: the Owner already has the lock, or waits for it, as %v", driver.ErrInvalid, c.mode)
	case c.holds():
		return a.regrant(ctx)
	case c.mode == driver.Counted:
		return a.acquirePermit(ctx)
	}
	return a.enqueue(ctx)
}

// enqueue makes the claim's node, or lists it again. The grant follows once no node blocks it.
func (a *attempt) enqueue(ctx context.Context) (driver.Grant, error) {
	c := a.c
	l, parent, err := a.getAhead(ctx, &c.node, c.prefix(), c.mode)
	if err != nil {
		return driver.Grant{}, err
	}
	if l.hasLocks || l.hasLeases {
		if err := c.checkPermits(ctx); err != nil {
			return driver.Grant{}, err
		}
	}
	return a.grant(parent.Pzxid)
}

// getAhead makes a node of the claim, or lists it again. It returns an error while another node
// blocks it, which the Owner's watch then watches.
func (a *attempt) getAhead(ctx context.Context, own *string, prefix string, m driver.Mode) (listing, zk.Stat, error) {
	c, dir := a.c, parentOf(prefix)
	for {
		var l listing
		var parent zk.Stat
		if *own == "" {
			n, err := c.create(ctx, prefix, c.data)
			if *own = n.Path; err != nil {
				return l, parent, err
			}
			l, parent = readListing(n.Children), n.Parent
		} else {
			var err error
			if l, parent, err = a.relist(ctx, *own, m); err != nil {
				return l, parent, err
			}
		}
		me, err := c.position(l.nodes, *own)
		if err != nil {
			return l, parent, err
		}
		if n, is := l.nodes.otherKind(me, m); is {
			return l, parent, conflictError(dir, n)
		}
		blocker, is := l.nodes.blocker(me, m)
		if !is {
			return l, parent, nil
		}
		if !a.leavesPlace() || a.w == nil || !a.w.watchEnd(ctx, c.s, dir+"/"+blocker.name) {
			return l, parent, a.refuse(ctx, l.nodes[0])
		}
	}
}

// relist lists the siblings of a node of the claim. If one blocks it, relist asks again behind a
// write, unless the Owner has a watch: that will report what the server learns late.
func (a *attempt) relist(ctx context.Context, path string, m driver.Mode) (listing, zk.Stat, error) {
	l, stat, err := a.c.s.list(ctx, parentOf(path))
	if me := l.nodes.index(nodeName(path)); err == nil && me >= 0 && a.w == nil {
		if _, is := l.nodes.blocker(me, m); is {
			return a.c.s.listCommitted(ctx, parentOf(path))
		}
	}
	return l, stat, err
}

// checkPermits refuses a mutex where the path is in use as a semaphore. The queue comes first,
// since a caller that has left it has a lease by then.
func (c *claim) checkPermits(ctx context.Context) error {
	for _, end := range []string{locksNode, leasesNode} {
		l, _, err := c.s.list(ctx, c.path+"/"+end)
		if err != nil {
			return err
		}
		if len(l.nodes) > 0 {
			return conflictError(c.path, node{name: end + "/" + l.nodes[0].name, mode: driver.Counted})
		}
	}
	return nil
}

// regrant grants a hold again. The fence is the transaction that rewrites the node's data, which
// also proves that the node exists.
func (a *attempt) regrant(ctx context.Context) (driver.Grant, error) {
	c := a.c
	a.renewData()
	fence, err := c.rewrite(ctx)
	if err != nil {
		return driver.Grant{}, err
	}
	return a.grant(fence)
}

// renewData makes the request's data the claim's, unless the lock was revoked.
func (a *attempt) renewData() {
	if string(a.c.data) != revokeData {
		a.c.data = a.b.encodeData(a.r)
	}
}

// downgrade replaces a writer's node by a reader's with the same number, in one transaction: so no
// other writer can come between. Curator does so since 5.5, in two steps. The listing includes the
// writer's end, so the fence is above the writer's.
func (a *attempt) downgrade(ctx context.Context) (driver.Grant, error) {
	c := a.c
	w, _ := parseNode(nodeName(c.node))
	reader := c.path + "/" + prefixOf(c.owner) + infixOf(driver.Read) + w.seq
	a.renewData()
	c.unwatchHeld()
	switch err := c.replace(ctx, reader); {
	case errors.Is(err, zk.ErrNoNode), errors.Is(err, errNodeGone):
		return driver.Grant{}, a.lost()
	case err != nil && notApplied(err):
		c.watchHeld()
		return driver.Grant{}, err
	case err != nil:
		c.unknown = true
		return driver.Grant{}, err
	}
	c.mode = driver.Read
	l, parent, err := c.s.list(ctx, c.path)
	if err != nil {
		return driver.Grant{}, err
	}
	if _, err := c.position(l.nodes, c.node); err != nil {
		return driver.Grant{}, err
	}
	return a.grant(parent.Pzxid)
}

// lost is for a hold that disappeared during a downgrade: others may have held since.
func (a *attempt) lost() error {
	a.c.markGone(true)
	a.b.removeClaim(a.c)
	return driver.ErrLost
}

// leavesPlace reports whether a refused attempt leaves its claim in the queue.
func (a *attempt) leavesPlace() bool { return a.r.Queue || !a.fresh }

// refuse is for a claim behind others. A try that made its claim removes it again.
func (a *attempt) refuse(ctx context.Context, holders ...node) error {
	held := heldBy(holders...)
	if !a.leavesPlace() {
		return a.undo(ctx, held)
	}
	if a.w != nil && a.w.idle() {
		a.b.goTask(a.w.rearm)
	}
	held.Signaled = true // the end of a session deletes its nodes, also those of a waiter
	return held
}

// undo deletes the attempt's nodes, and returns why. It returns another error if they may still
// exist.
func (a *attempt) undo(ctx context.Context, why error) error {
	if _, err := a.c.deleteNodes(ctx); err != nil {
		return fmt.Errorf("deleting the nodes of a refused attempt: %v", err) // no fact about the lock
	}
	a.b.removeClaim(a.c)
	return why
}

// grant turns the claim into a hold.
func (a *attempt) grant(fence int64) (driver.Grant, error) {
	c := a.c
	ttl := c.s.conn.Deadline().Sub(a.start)
	if ttl <= 0 {
		return driver.Grant{}, errUnconfirmed
	}
	if !c.markHeld(a.r) {
		return driver.Grant{}, errNodeGone
	}
	c.scheduleWatch()
	return driver.Grant{Fence: uint64(fence), Fences: 1, TTL: ttl}, nil
}

// A semaphore is Curator's SemaphoreV2. Its waiters queue below locks, as for a mutex. The first of
// them makes a node below leases, and holds once that is among the first N, where N is the number
// of permits; then it leaves the queue. A try makes its lease at once if there are permits for
// itself and all queued waiters. The order of the leases decides, and no lease gets before another:
// so there are never more than N holders.

// peekPermits refuses a try if the permits don't suffice for the waiters and itself.
func (a *attempt) peekPermits(ctx context.Context, list lister) error {
	path := pathOf(a.r.Name)
	all, err := readContents(ctx, list, path)
	if err != nil {
		return err
	}
	if len(all.nodes) > 0 {
		return conflictError(path, all.nodes[0])
	}
	if err := checkLimit(path, all.leases, a.r.Limit); err != nil {
		return err
	}
	if len(all.leases)+len(all.locks) >= a.r.Limit {
		return heldBy(all.leases...)
	}
	return nil
}

// checkLimit refuses a limit that differs from the limit of existing leases. Curator's leases have
// none.
func checkLimit(path string, leases nodeList, limit int) error {
	for _, n := range leases {
		if n.limit != 0 && n.limit != limit {
			return fmt.Errorf("%w: the semaphore %s is in use with %d permits, not %d", driver.ErrInvalid, driver.Quote(path), n.limit, limit)
		}
	}
	return nil
}

// acquirePermit gets to the head of the queue and then among the first leases.
func (a *attempt) acquirePermit(ctx context.Context) (driver.Grant, error) {
	c := a.c
	if a.r.Queue || c.queueNode != "" {
		if err := a.advanceQueue(ctx); err != nil {
			return driver.Grant{}, err
		}
	}
	leases, fence, err := a.takeLease(ctx)
	if err != nil {
		return driver.Grant{}, err
	}
	me, err := c.position(leases, c.node)
	if errors.Is(err, errNodeGone) {
		err = c.startOver(ctx)
	}
	if err != nil {
		return driver.Grant{}, err
	}
	if err := checkLimit(c.path, leases[:me], a.r.Limit); err != nil {
		return driver.Grant{}, err
	}
	if me >= a.r.Limit {
		return driver.Grant{}, a.refuse(ctx, leases[:min(a.r.Limit, len(leases))]...)
	}
	if err := c.checkOtherKinds(ctx); err != nil {
		return driver.Grant{}, err
	}
	if fence == 0 {
		if fence, err = c.rewrite(ctx); errors.Is(err, errNodeGone) {
			err = c.startOver(ctx)
		}
		if err != nil {
			return driver.Grant{}, err
		}
	}
	g, err := a.grant(fence)
	if err == nil && c.queueNode != "" {
		c.leaveQueue()
	}
	return g, err
}

// advanceQueue makes the claim's node in the queue, or lists it again. It returns nil at the head
// of the queue.
func (a *attempt) advanceQueue(ctx context.Context) error {
	c := a.c
	prefix := c.queueDir() + "/" + prefixOf(c.owner) + infixOf(driver.Exclusive)
	_, _, err := a.getAhead(ctx, &c.queueNode, prefix, driver.Exclusive)
	if errors.Is(err, errNodeGone) {
		return c.startOver(ctx)
	}
	return err
}

// takeLease makes the claim's lease, or lists it again. The fence is the transaction that made it
// if no lease has come or gone since: then it is above the fences of all that have ended. Otherwise
// it is 0, and the lease must be rewritten.
func (a *attempt) takeLease(ctx context.Context) (leases nodeList, fence int64, err error) {
	c := a.c
	if c.node != "" {
		l, _, err := c.s.listCommitted(ctx, c.dir())
		if err == nil && l.nodes.index(nodeName(c.node)) < 0 {
			err = c.startOver(ctx)
		}
		return l.nodes, 0, err
	}
	n, err := c.create(ctx, c.prefix(), c.data)
	if c.node = n.Path; err != nil {
		return nil, 0, err
	}
	if n.Parent.Pzxid == n.Stat.Czxid {
		fence = n.Stat.Czxid
	}
	return readListing(n.Children).nodes, fence, nil
}

// startOver is for a claim that has lost one of its nodes: it deletes the other.
func (c *claim) startOver(ctx context.Context) error {
	if _, err := c.deleteNodes(ctx); err != nil {
		return err
	}
	return errNodeGone
}

// checkOtherKinds refuses a permit where the path is in use as another kind of lock. It looks for
// other nodes after making a lease; the other kinds look for leases after making their node. So one
// of the two sees the other.
func (c *claim) checkOtherKinds(ctx context.Context) error {
	l, _, err := c.s.list(ctx, c.path)
	if err == nil && len(l.nodes) > 0 {
		return conflictError(c.path, l.nodes[0])
	}
	return err
}

// leaveQueue lets the next waiter advance, in the background.
func (c *claim) leaveQueue() {
	s, node := c.s, c.queueNode
	c.queueNode = ""
	s.deleteInBackground(node)
}
