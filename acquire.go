package distlock

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/bounded"
	"github.com/distlock/distlock/internal/renew"
	"github.com/distlock/distlock/internal/wait"
)

// Bounds of the waiting loop.
const (
	maxWait     = time.Second // the longest pause after an unknown answer
	defaultPoll = 10 * time.Millisecond
	firstPause  = 20 * time.Millisecond // after an unknown answer, doubling to maxWait
)

var errBehindOther = invalid("the caller holds it already, by its context, and one that wants it alone waits for that, so that the caller would wait for itself; make a read lock Reentrant, take all permits at once, or pass a context from outside")

var errLate = errors.New("the grant arrived after its own end")

// contender is a caller that talks to the backend.
type contender struct {
	role
	env            *env
	queues         *queues
	sh             *shard      // of the name
	queue          *localQueue // nil for fair locks, whose place is in the queue of the backend
	s              *spec
	op             string
	ctx            context.Context
	start          instant
	once           bool   // one attempt, beside the queue
	nested         *Lease // by which the caller holds it for reading, or has a permit of it, and wants another
	waitingEmitted bool   // the observer was notified of the wait
	told           string // the last error that the observer was told of; empty once there was an answer
	toldAt         instant
	unwatch        bool   // the backend has no watch
	blocker        uint64 // the fence of the holder that was seen last
	taken          bool   // others take the lock in turns
	round          int
}

func (c *contender) cut() error { return cutShort(c.op, c.s.name, c.ctx, c.last) }

// event returns what all events of a wait have.
func (c *contender) event() Event {
	return Event{Context: c.ctx, Name: c.s.name, Mode: c.s.mode, Waited: c.env.now() - c.start, Contended: c.waitingEmitted}
}

// whyWaiting returns the last answer, also if another contender of this process got it.
func (c *contender) whyWaiting() error {
	if c.last != nil || c.queue == nil {
		return c.last
	}
	c.queue.sh.mu.Lock()
	defer c.queue.sh.mu.Unlock()
	return c.queue.whyWaiting()
}

// emitWaiting reports the wait. undo ends it.
func (c *contender) emitWaiting(undo func()) {
	if c.waitingEmitted {
		return
	}
	c.waitingEmitted = true
	if report := c.env.observer.Waiting; report != nil {
		e := c.event()
		e.Blocker = blockerOf(c.whyWaiting())
		emit(report, e, undo)
	}
}

// tellAgain is when the observer is told again that there still is no answer: silence would mean that the store is well.
const tellAgain = 30 * time.Second

// emitUnanswered reports that the last attempt had no answer.
func (c *contender) emitUnanswered() {
	if c.last == nil || errors.Is(c.last, ErrHeld) {
		c.told = ""
		return
	}
	report, text := c.env.observer.Unanswered, ""
	if report != nil {
		text = c.last.Error()
	}
	if text == c.told && c.env.now()-c.toldAt < tellAgain {
		return
	}
	c.told, c.toldAt = text, c.env.now()
	e := c.event()
	e.Op, e.Err = c.op, c.last
	emit(report, e, c.pass)
}

func (c *contender) giveUpWaiting(err error) error {
	if c.waitingEmitted {
		if report := c.env.observer.GaveUp; report != nil {
			e := c.event()
			e.Blocker, e.Err = blockerOf(err), err
			emit(report, e, nil)
		}
	}
	return err
}

// contend is the waiting loop: try, arm the watch, try again, wait, and so on. Trust in a grant
// starts before the call that brought it, and is never inferred from a place in the queue.
func (c *contender) contend() (*Lease, error) {
	c.env.tasks.Begin()
	defer c.env.tasks.End()
	if c.env.isClosed() {
		return nil, c.giveUp(fail(c.op, c.s.name, ErrClosed))
	}
	if c.firstStep != (firstStep{}) {
		if err := c.open(); err != nil {
			return nil, c.giveUp(err)
		}
	}
	for {
		lease, err := c.attempt()
		if lease != nil {
			return lease, nil
		}
		c.recordOwner(err)
		switch {
		case driver.Final(err) && c.env.isClosed():
			return nil, c.giveUp(fail(c.op, c.s.name, ErrClosed))
		case driver.Final(err):
			return nil, c.giveUp(fail(c.op, c.s.name, err))
		}
		c.recordAnswer(err) // even before a Close, which releases attempts without an answer
		if c.env.isClosed() {
			return nil, c.giveUp(fail(c.op, c.s.name, ErrClosed))
		}
		if c.ctx.Err() != nil {
			return nil, c.giveUp(c.cut())
		}
		if c.once {
			return nil, c.giveUp(fail(c.op, c.s.name, err))
		}
		if c.nested != nil && errors.Is(err, ErrHeld) && c.waitsForItself() {
			return nil, c.giveUp(fail(c.op, c.s.name, errBehindOther))
		}
		c.emitWaiting(c.pass)
		c.emitUnanswered()
		if c.arm() {
			continue
		}
		if err := c.pause(c.bound()); err != nil {
			return nil, c.giveUp(err)
		}
		c.round++
	}
}

// open does what comes before the first attempt.
func (c *contender) open() error {
	if c.firstStep.arm {
		c.arm()
	}
	if c.firstStep.pause == 0 {
		return nil
	}
	return c.pause(c.firstStep.pause)
}

// attempt calls the backend once.
func (c *contender) attempt() (*Lease, error) {
	if c.env.endless() {
		if err := c.env.releaser.Room(); err != nil {
			return nil, err
		}
	}
	if c.owner == "" {
		c.owner = c.env.owners.New()
	}
	h := &hold{env: c.env, s: c.s, sh: c.sh, owner: c.owner, mode: c.s.mode, leftMode: c.s.mode, handoffs: c.handoffs}
	request := c.request(h.signalGone)
	if request.TTL > c.s.terms.TTL {
		h.longestTTL.Store(int64(request.TTL))
	}
	ctx := c.env.calls.context(c.ctx, c.s.terms.CallTimeout)
	start := c.env.now()
	grant, err := c.env.backend.Acquire(ctx, request)
	ctx.End()
	if err != nil {
		return nil, err
	}
	c.unknown = true
	return c.granted(h, start, grant)
}

// request returns the next request to the backend.
func (c *contender) request(onLost func()) driver.Request {
	r := driver.Request{
		Hold:  driver.Hold{Name: c.s.name, Owner: c.owner, Mode: c.s.mode, TTL: c.ttl()},
		Limit: c.s.limit, Fixed: c.s.terms.Fixed, Queue: c.takesPlace(), Fences: c.s.fences, Meta: c.s.meta, OnLost: onLost,
	}
	if c.s.revoked != nil {
		if c.revoke == nil {
			c.revoke = &revocation{}
		}
		r.OnRevoke = c.revoke.notify
	}
	return r
}

// ttl returns the TTL of an attempt. A single one asks for MinHold at once, so that the hold outlives also a process that dies.
// With a waiter's, its place in the queue would outlive the process for as long.
func (c *contender) ttl() time.Duration {
	if !c.once || c.env.caps.Session || c.s.terms.Fixed {
		return c.s.terms.TTL
	}
	return max(c.s.terms.TTL, c.s.minHold)
}

// takesPlace reports whether a refused attempt leaves a place in the queue of the backend.
func (c *contender) takesPlace() bool {
	return c.s.queued && !c.once && (c.nested == nil || c.s.mode == Counted)
}

// waitsForItself reports whether a refused caller that holds the lock already waits for one that waits for it: a reader waits
// for nobody but a writer, and a permit may be in the way of another kind in the queue.
func (c *contender) waitsForItself() bool {
	if c.s.mode == Read {
		return c.nested.Err() == nil
	}
	i, ok := c.env.backend.(driver.Inspector)
	if !ok {
		return false
	}
	ctx := c.env.calls.context(c.ctx, c.s.terms.CallTimeout)
	defer ctx.End()
	info, err := i.Inspect(ctx, c.s.name)
	if end := slices.IndexFunc(info.Waiters, func(w driver.Holder) bool { return w.Owner == c.owner }); end >= 0 {
		info.Waiters = info.Waiters[:end]
	}
	return err == nil && c.nested.Err() == nil && slices.ContainsFunc(info.Waiters, func(w driver.Holder) bool { return w.Mode != Counted })
}

// granted makes the lease and ends the role, unless the grant came too late.
func (c *contender) granted(h *hold, start instant, grant driver.Grant) (*Lease, error) {
	now, trust := c.env.now(), c.s.trusted(grant)
	switch {
	case now >= start+trust-c.s.terms.Margin, c.s.terms.MaxHold > 0 && now >= start+c.s.terms.MaxHold:
		return nil, errLate
	case c.ctx.Err() != nil:
		return nil, c.ctx.Err()
	}
	h.sh.mu.Lock()
	h.next, h.last = grant.Fence, grant.Fence+grant.Fences-1
	lease := h.newLease(c.ctx, now) // before Add: Close looks at MinHold without the mutex
	if !c.env.watchdog.Add(&h.life, h, &c.s.terms, start, trust) {
		h.sh.mu.Unlock()
		return nil, ErrClosed
	}
	h.state = held
	c.enterQueue(h, now-start)
	h.sh.mu.Unlock()
	if c.watch != nil {
		c.watch.Close()
		c.watch = nil
	}
	if report := c.env.observer.Granted; report != nil {
		e := c.event()
		e.Owner, e.Fence = h.owner, grant.Fence
		emit(report, e, func() {
			h.grantReported()
			unlockSilently(c.ctx, lease)
		})
	}
	h.grantReported()
	if c.s.revoked != nil {
		c.revoke.attach(h)
	}
	return lease, nil
}

// enterQueue enters a new hold in the queue. sh.mu is held.
func (c *contender) enterQueue(h *hold, rtt time.Duration) {
	q := c.queue
	if q == nil {
		return
	}
	q.history.rtt, q.history.waited = rtt, c.waitingEmitted
	if c.env.polls.Load() {
		q.history.seeTurn(h, c.round > 0, c.env.now())
	}
	if c.once {
		q.tries--
	} else {
		q.contender, q.refusal = false, nil
	}
	if !c.s.alone {
		q.promote()
		return
	}
	h.queue, q.held = q, h
}

// recordOwner records what an attempt may have left to its Owner. If the attempt has released that, the next one has
// a fresh Owner: a revocation, or a message to the place in a queue, was for the old one.
func (c *contender) recordOwner(err error) {
	held := errors.Is(err, ErrHeld)
	if !driver.Final(err) && !errors.Is(err, driver.ErrUnsent) && (!held || c.takesPlace()) {
		c.unknown = true // an attempt without an answer may land after later ones were answered
	}
	if !errors.Is(err, driver.ErrSpent) {
		return
	}
	c.revoke = nil
	if c.watch != nil && !held && c.takesPlace() {
		c.watch.Close()
		c.watch = nil
	}
	c.dropOwner()
}

// recordAnswer records the answer to an attempt.
func (c *contender) recordAnswer(err error) {
	held := errors.Is(err, ErrHeld)
	if held {
		c.handoffs = handoffs{}
		c.seeBlocker(err)
	}
	if c.ctx.Err() != nil && !held {
		err = cmp.Or(c.last, renew.ErrNoAnswer)
	}
	c.last = err
	if c.queue == nil {
		return
	}
	c.queue.sh.mu.Lock()
	defer c.queue.sh.mu.Unlock()
	if held && c.queue.held == nil {
		c.queue.history.refused = c.env.now()
	}
	if !c.once {
		c.queue.refusal = err
	}
}

// seeBlocker notes whether others take the lock in turns. A refusal that names neither a holder nor a time is of a lock that others
// have taken and released meanwhile.
func (c *contender) seeBlocker(err error) {
	held, fence := &HeldError{}, uint64(0)
	if errors.As(err, &held) && len(held.Holders) > 0 {
		fence = held.Holders[0].Fence
	}
	if errors.Is(c.last, ErrHeld) && (fence != c.blocker || fence == 0 && held.Retry == 0) {
		c.taken, c.round = true, 0
	}
	c.blocker = fence
}

// arm arms the watch. It reports whether it did so just now: then another attempt must follow,
// since the lock may have become free before.
func (c *contender) arm() bool {
	w, ok := c.env.backend.(driver.Watcher)
	if !ok || c.watch != nil || c.unwatch || c.last != nil && !errors.Is(c.last, ErrHeld) {
		return false
	}
	if c.owner == "" {
		c.owner = c.env.owners.New()
	}
	ctx := bounded.Within(c.ctx, c.s.terms.CallTimeout)
	defer ctx.End()
	watch, err := w.Watch(ctx, c.request(nil))
	if errors.Is(err, driver.ErrSkip) {
		c.unwatch = true
		c.env.polls.Store(true)
		return false
	}
	// From now on a backend that waits natively may take the lock for this Owner.
	c.unknown = c.unknown || !errors.Is(err, driver.ErrUnsent)
	if err != nil {
		return false
	}
	c.watch = &watch
	return true
}

// bound returns how long to wait for a signal before the next attempt.
func (c *contender) bound() time.Duration {
	held := (*HeldError)(nil)
	if !errors.As(c.last, &held) {
		return wait.Jitter(wait.Backoff(c.round, firstPause, min(maxWait, c.s.terms.TTL/3)))
	}
	var poll, place time.Duration
	if c.watch == nil {
		poll = c.pollPause()
	}
	if c.takesPlace() && !c.env.caps.Session {
		place = c.s.terms.TTL
	}
	return wait.Refused(held, poll, place)
}

// pollPause returns the pause between two attempts without a signal. Where waiters have no queue, and others take the lock in turns, the
// pause becomes shorter with the time: the one that has waited for longest is likely to be next.
func (c *contender) pollPause() time.Duration {
	poll := c.env.poll()
	if c.taken && c.env.caps.QueueingOf(c.s.mode) == driver.QueueNever {
		return wait.Backoff(c.round/2, max(poll>>min(3, (c.env.now()-c.start)/poll), min(poll, seldom)), poll)
	}
	return wait.Backoff(c.round/2, poll, 16*poll)
}

// pause waits for a signal, but no longer than d.
func (c *contender) pause(d time.Duration) error {
	var ready <-chan struct{}
	if c.watch != nil {
		ready = c.watch.Ready
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ready:
	case <-t.C:
	case <-c.ctx.Done():
		return c.cut()
	case <-c.env.done:
		return fail(c.op, c.s.name, ErrClosed)
	}
	return nil
}

// giveUp ends the contender without a lease, and passes its role on.
func (c *contender) giveUp(err error) error {
	c.pass()
	return c.giveUpWaiting(err)
}

// pass gives the role to the next waiter, or ends it.
func (c *contender) pass() {
	q := c.queue
	if q == nil || c.once {
		c.drop()
		if q != nil {
			q.sh.mu.Lock()
			q.tries--
			q.promote()
			q.sh.mu.Unlock()
		}
		return
	}
	q.sh.mu.Lock()
	w := q.waiters.head
	if w == nil || !w.s.sameRequest(c.s) || c.handoffs.count > 0 && !w.s.canTakeOver(c.s) || c.env.isClosed() {
		q.sh.mu.Unlock()
		c.drop()
		q.sh.mu.Lock()
		q.contender = false
		q.promote()
		q.sh.mu.Unlock()
		return
	}
	q.waiters.pop()
	c.firstStep = firstStep{}
	c.env.tasks.Begin()
	w.ch <- delivery{role: c.role}
	q.sh.mu.Unlock()
}

// drop ends what belongs to the role.
func (c *contender) drop() {
	if c.watch != nil {
		c.watch.Close()
	}
	c.dropOwner()
	c.role = role{}
}

// dropOwner releases what the role's Owner may have. Another attempt has a fresh one.
func (c *contender) dropOwner() {
	if c.unknown {
		c.env.releaser.Add(driver.Hold{Name: c.s.name, Owner: c.owner, Mode: c.s.mode, TTL: c.ttl()}, nil)
	}
	c.owner, c.unknown = "", false
}

// enqueue waits in the queue for a lease or for the role of the contender.
func (c *contender) enqueue() (*Lease, error) {
	sh := c.sh
	sh.mu.Lock()
	q := c.queues.queueOf(sh, c.s.name)
	c.queue = q
	if !q.contender && q.held == nil && q.waiters.head == nil {
		if c.s.alone || c.s.queued && q.history.waited {
			q.contender, q.refusal = true, nil
			c.firstStep = q.history.firstStep(c.env, c.s.mode, c.start)
			sh.mu.Unlock()
			return c.contend()
		}
		q.tries++
		sh.mu.Unlock()
		return c.tryThenEnqueue()
	}
	w := c.join(q)
	sh.mu.Unlock()
	return c.await(w)
}

// tryThenEnqueue makes one attempt beside the queue, and enters the queue if that is refused: shared
// holds need no order among themselves. Where the last one had to wait, this attempt is likely to be one too many.
func (c *contender) tryThenEnqueue() (*Lease, error) {
	c.once = true
	lease, err := c.contend()
	e := (*Error)(nil)
	if lease != nil || !errors.Is(err, ErrHeld) && !errors.Is(err, ErrUnavailable) || !errors.As(err, &e) {
		return lease, err
	}
	ended := c.ctx.Err()
	if ended != nil && errors.Is(err, ended) {
		return nil, err
	}
	if c.last = e.Err; ended != nil {
		return nil, c.cut()
	}
	c.once = false
	sh := c.sh
	sh.mu.Lock()
	w := c.join(c.queues.queueOf(sh, c.s.name))
	if !c.queue.contender {
		c.queue.refusal = c.last
	}
	c.queue.promote()
	sh.mu.Unlock()
	return c.await(w)
}

// join takes the last place in q. sh.mu is held.
func (c *contender) join(q *localQueue) *waiter {
	c.queue = q
	w := q.sh.waiter(c.ctx, c.s)
	q.waiters.push(w)
	return w
}

// await receives what is delivered to w, or leaves the queue when ctx ends.
func (c *contender) await(w *waiter) (*Lease, error) {
	c.emitWaiting(func() { c.leave(w) })
	if c.env.isClosed() {
		// Close may have emptied the queue before w joined it.
		return nil, c.leaveQueue(w, fail(c.op, c.s.name, ErrClosed))
	}
	var d delivery
	select {
	case d = <-w.ch:
	case <-c.ctx.Done():
		return nil, c.leaveQueue(w, nil)
	}
	c.queue.sh.mu.Lock()
	if c.ctx.Err() != nil {
		c.last = c.queue.whyWaiting()
	}
	c.queue.sh.recycle(w)
	c.queue.sh.mu.Unlock()
	return c.receive(d)
}

// receive accepts a delivery, or declines it if ctx has ended.
func (c *contender) receive(d delivery) (*Lease, error) {
	switch {
	case d.err != nil:
		return nil, c.giveUpWaiting(fail(c.op, c.s.name, d.err))
	case c.ctx.Err() != nil:
		c.decline(d)
		return nil, c.giveUpWaiting(c.cut())
	case d.lease != nil:
		if report := c.env.observer.HandedOff; report != nil {
			e := c.event()
			e.Owner, e.Fence = d.lease.h.owner, d.lease.Fence()
			emit(report, e, func() { unlockSilently(c.ctx, d.lease) })
		}
		return d.lease, nil
	}
	c.role = d.role
	defer c.env.tasks.End() // begun with the delivery
	return c.contend()
}

// leaveQueue leaves the queue with err, or with why the wait was cut short.
func (c *contender) leaveQueue(w *waiter, err error) error {
	last := c.leave(w)
	if err == nil {
		c.last = last
		err = c.cut()
	}
	return c.giveUpWaiting(err)
}

// leave leaves the queue, and returns the last answer. It declines a delivery that came meanwhile.
func (c *contender) leave(w *waiter) (last error) {
	sh := c.queue.sh
	sh.mu.Lock()
	last = c.queue.whyWaiting()
	if w.queued {
		c.queue.waiters.remove(w)
		c.queue.promote()
	} else {
		d := <-w.ch
		sh.mu.Unlock()
		c.decline(d)
		sh.mu.Lock()
	}
	sh.recycle(w)
	sh.mu.Unlock()
	return last
}

// decline passes on the delivery to a caller that has given up.
func (c *contender) decline(d delivery) {
	switch {
	case d.err != nil:
	case d.lease != nil:
		c.env.tasks.Begin()
		go unlockDeclined(c.env, c.ctx, d.lease)
	default:
		last := cmp.Or(c.last, d.role.last)
		c.role = d.role
		c.pass()
		c.env.tasks.End()
		c.last = last
	}
}

func unlockDeclined(e *env, ctx context.Context, l *Lease) {
	defer e.tasks.End()
	unlockSilently(ctx, l)
}

// unlockSilently unlocks a lease that no caller has got, and reports nothing. A release without an answer is retried.
func unlockSilently(ctx context.Context, l *Lease) {
	l.neverUsed()
	if core := l.core(); core.end(ErrReleased) {
		_ = l.h.unlock(ctx, core, nil)
		return
	}
	l.h.settle()
}
