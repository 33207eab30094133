package distlock

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/renew"
	"github.com/distlock/distlock/internal/wait"
)

// Bounds of the waiting loop.
const (
	maxWait     = time.Second           // a wait for a signal ends after about this long
	minRetry    = 50 * time.Millisecond // HeldError.Retry is not trusted below
	defaultPoll = 10 * time.Millisecond
	firstPause  = 20 * time.Millisecond // after an unknown answer, doubling to maxWait
)

var errLate = errors.New("the grant arrived after its own end")

// contender is a caller that talks to the backend.
type contender struct {
	role
	env            *env
	queues         *queues
	queue          *localQueue // nil for fair locks, whose place is in the queue of the backend
	s              *spec
	op             string
	ctx            context.Context
	start          instant
	once           bool   // one attempt, beside the queue
	nested         *Lease // by which the caller holds it for reading: a refusal is by a writer that waits for the caller
	waitingEmitted bool   // the observer was notified of the wait
	told           string // the last error that the observer was told of; empty once there was an answer
	unwatch        bool   // the backend has no watch
	round          int
}

func (k *contender) cut() error { return cutShort(k.op, k.s.name, k.ctx, k.last) }

// event returns what all events of a wait have.
func (k *contender) event() Event {
	return Event{Context: k.ctx, Name: k.s.name, Mode: k.s.mode, Waited: k.env.now() - k.start, Contended: k.waitingEmitted}
}

// whyWaiting returns the last answer, also if another contender of this process got it.
func (k *contender) whyWaiting() error {
	if k.last != nil || k.queue == nil {
		return k.last
	}
	k.queue.sh.mu.Lock()
	defer k.queue.sh.mu.Unlock()
	return k.queue.whyWaiting()
}

// emitWaiting reports the wait. undo ends it.
func (k *contender) emitWaiting(undo func()) {
	if k.waitingEmitted {
		return
	}
	k.waitingEmitted = true
	if report := k.env.observer.Waiting; report != nil {
		e := k.event()
		e.Blocker = blockerOf(k.whyWaiting())
		emit(report, e, undo)
	}
}

// emitUnanswered reports that the last attempt had no answer.
func (k *contender) emitUnanswered() {
	if k.last == nil || errors.Is(k.last, ErrHeld) {
		k.told = ""
		return
	}
	report, text := k.env.observer.Unanswered, ""
	if report != nil {
		text = k.last.Error()
	}
	if text == k.told {
		return
	}
	k.told = text
	e := k.event()
	e.Op, e.Err = k.op, k.last
	emit(report, e, k.pass)
}

func (k *contender) giveUpWaiting(err error) error {
	if k.waitingEmitted {
		if report := k.env.observer.GaveUp; report != nil {
			e := k.event()
			e.Blocker, e.Err = blockerOf(err), err
			emit(report, e, nil)
		}
	}
	return err
}

// contend is the waiting loop: try, arm the watch, try again, wait, and so on. Trust in a grant
// starts before the call that brought it, and is never inferred from a place in the queue.
func (k *contender) contend() (*Lease, error) {
	k.env.tasks.Begin()
	defer k.env.tasks.End()
	if k.env.isClosed() {
		return nil, k.giveUp(fail(k.op, k.s.name, ErrClosed))
	}
	if k.opening != (opening{}) {
		if err := k.open(); err != nil {
			return nil, k.giveUp(err)
		}
	}
	for {
		lease, err := k.attempt()
		if lease != nil {
			return lease, nil
		}
		k.recordOwner(err)
		switch {
		case driver.Final(err) && k.env.isClosed():
			return nil, k.giveUp(fail(k.op, k.s.name, ErrClosed))
		case driver.Final(err):
			return nil, k.giveUp(fail(k.op, k.s.name, err))
		}
		k.recordAnswer(err) // even before a Close, which releases attempts without an answer
		if k.env.isClosed() {
			return nil, k.giveUp(fail(k.op, k.s.name, ErrClosed))
		}
		if k.ctx.Err() != nil {
			return nil, k.giveUp(k.cut())
		}
		if k.once {
			return nil, k.giveUp(fail(k.op, k.s.name, err))
		}
		if k.nested != nil && errors.Is(err, ErrHeld) && k.nested.Err() == nil {
			return nil, k.giveUp(fail(k.op, k.s.name, errBehindWriter))
		}
		k.emitWaiting(k.pass)
		k.emitUnanswered()
		if k.arm() {
			continue
		}
		if err := k.pause(k.bound()); err != nil {
			return nil, k.giveUp(err)
		}
		k.round++
	}
}

// open does what comes before the first attempt.
func (k *contender) open() error {
	if k.opening.arm {
		k.arm()
	}
	if k.opening.pause == 0 {
		return nil
	}
	return k.pause(k.opening.pause)
}

// attempt calls the backend once.
func (k *contender) attempt() (*Lease, error) {
	if k.env.caps.Session {
		if err := k.env.releaser.Room(); err != nil {
			return nil, err
		}
	}
	if k.owner == "" {
		k.owner = k.env.owners.New()
	}
	h := &hold{env: k.env, s: k.s, sh: k.queues.shard(k.s.name), owner: k.owner, mode: k.s.mode, leftMode: k.s.mode, handoffs: k.handoffs}
	ctx := k.env.calls.context(k.ctx, k.s.terms.CallTimeout)
	start := k.env.now()
	grant, err := k.env.backend.Acquire(ctx, k.request(h.signalGone))
	ctx.End()
	if err != nil {
		return nil, err
	}
	k.unknown = true
	return k.granted(h, start, grant)
}

// request returns the next request to the backend.
func (k *contender) request(onLost func()) driver.Request {
	r := driver.Request{
		Hold:  driver.Hold{Name: k.s.name, Owner: k.owner, Mode: k.s.mode, TTL: k.s.terms.TTL},
		Limit: k.s.limit, Fixed: k.s.terms.Fixed, Queue: k.takesPlace(), Fences: k.s.fences, Meta: k.s.meta, OnLost: onLost,
	}
	if k.s.revoked != nil {
		if k.revoke == nil {
			k.revoke = &revocation{}
		}
		r.OnRevoke = k.revoke.notify
	}
	return r
}

// takesPlace reports whether a refused attempt leaves a place in the queue of the backend.
func (k *contender) takesPlace() bool {
	return k.s.queued && !k.once && k.nested == nil
}

// granted makes the lease and ends the role, unless the grant came too late.
func (k *contender) granted(h *hold, start instant, grant driver.Grant) (*Lease, error) {
	now, trust := k.env.now(), k.s.trusted(grant)
	switch {
	case now >= start+trust-k.s.terms.Margin, k.s.terms.MaxHold > 0 && now >= start+k.s.terms.MaxHold:
		return nil, errLate
	case k.ctx.Err() != nil:
		return nil, k.ctx.Err()
	}
	h.sh.mu.Lock()
	if !k.env.watchdog.Add(&h.life, h, &k.s.terms, start, trust) {
		h.sh.mu.Unlock()
		return nil, ErrClosed
	}
	h.state, h.next, h.last = held, grant.Fence, grant.Fence+grant.Fences-1
	lease := h.newLease(k.ctx, now)
	k.enterQueue(h, now-start)
	h.sh.mu.Unlock()
	if k.watch != nil {
		k.watch.Close()
		k.watch = nil
	}
	if report := k.env.observer.Granted; report != nil {
		e := k.event()
		e.Owner, e.Fence = h.owner, grant.Fence
		emit(report, e, func() { unlockSilently(k.ctx, lease) })
	}
	if h.gone.Load() {
		h.Lose(renew.ErrGone, false)()
	}
	if k.s.revoked != nil {
		k.revoke.attach(h)
	}
	return lease, nil
}

// enterQueue enters a new hold in the queue. sh.mu is held.
func (k *contender) enterQueue(h *hold, rtt time.Duration) {
	q := k.queue
	if q == nil {
		return
	}
	q.history.rtt = rtt
	if k.once {
		q.tries--
	} else {
		q.contender, q.refusal = false, nil
	}
	if !k.s.alone {
		q.promote()
		return
	}
	h.queue, q.held = q, h
}

// recordOwner records what an attempt may have left to its Owner. If the attempt has released that, the next one has
// a fresh Owner: a revocation, or a message to the place in a queue, was for the old one.
func (k *contender) recordOwner(err error) {
	held := errors.Is(err, ErrHeld)
	if !driver.Final(err) && !errors.Is(err, driver.ErrUnsent) && (!held || k.takesPlace()) {
		k.unknown = true // an attempt without an answer may land after later ones were answered
	}
	if !errors.Is(err, driver.ErrSpent) {
		return
	}
	k.revoke = nil
	if k.watch != nil && !held && k.takesPlace() {
		k.watch.Close()
		k.watch = nil
	}
	k.dropOwner()
}

// recordAnswer records the answer to an attempt.
func (k *contender) recordAnswer(err error) {
	held := errors.Is(err, ErrHeld)
	if held {
		k.handoffs = handoffs{}
	}
	if k.ctx.Err() != nil && !held {
		err = cmp.Or(k.last, renew.ErrNoAnswer)
	}
	k.last = err
	if k.queue == nil {
		return
	}
	k.queue.sh.mu.Lock()
	defer k.queue.sh.mu.Unlock()
	if held && k.queue.held == nil {
		k.queue.history.refused = k.env.now()
	}
	if !k.once {
		k.queue.refusal = err
	}
}

// arm arms the watch. It reports whether it did so just now: then another attempt must follow,
// since the lock may have become free before.
func (k *contender) arm() bool {
	w, ok := k.env.backend.(driver.Watcher)
	if !ok || k.watch != nil || k.unwatch || k.last != nil && !errors.Is(k.last, ErrHeld) {
		return false
	}
	if k.owner == "" {
		k.owner = k.env.owners.New()
	}
	ctx, cancel := context.WithTimeout(k.ctx, k.s.terms.CallTimeout)
	defer cancel()
	watch, err := w.Watch(ctx, k.request(nil))
	if errors.Is(err, driver.ErrSkip) {
		k.unwatch = true
		return false
	}
	// From now on a backend that waits natively may take the lock for this Owner.
	k.unknown = k.unknown || !errors.Is(err, driver.ErrUnsent)
	if err != nil {
		return false
	}
	k.watch = &watch
	return true
}

// bound returns how long to wait for a signal before the next attempt.
func (k *contender) bound() time.Duration {
	held := (*HeldError)(nil)
	if !errors.As(k.last, &held) {
		return wait.Jitter(wait.Backoff(k.round, firstPause, min(maxWait, k.s.terms.TTL/3)))
	}
	d := maxWait
	if k.watch == nil {
		d = k.pollPause()
	}
	if k.takesPlace() {
		// The place in the queue lives for a TTL after the last attempt.
		d = min(d, k.s.terms.TTL/5)
	}
	d = wait.Jitter(d)
	if held.Retry > 0 {
		d = min(d, max(min(held.Retry, d), minRetry)+time.Millisecond)
	}
	return d
}

func (k *contender) pollPause() time.Duration {
	poll := k.env.caps.Poll
	if poll <= 0 {
		poll = defaultPoll
	}
	return wait.Backoff(k.round/2, poll, 16*poll)
}

// pause waits for a signal, but no longer than d.
func (k *contender) pause(d time.Duration) error {
	var ready <-chan struct{}
	if k.watch != nil {
		ready = k.watch.Ready
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ready:
	case <-t.C:
	case <-k.ctx.Done():
		return k.cut()
	case <-k.env.done:
		return fail(k.op, k.s.name, ErrClosed)
	}
	return nil
}

// giveUp ends the contender without a lease, and passes its role on.
func (k *contender) giveUp(err error) error {
	k.pass()
	return k.giveUpWaiting(err)
}

// pass gives the role to the next waiter, or ends it.
func (k *contender) pass() {
	g := k.queue
	if g == nil || k.once {
		k.drop()
		if g != nil {
			g.sh.mu.Lock()
			g.tries--
			g.promote()
			g.sh.mu.Unlock()
		}
		return
	}
	g.sh.mu.Lock()
	w := g.waiters.head
	if w == nil || !w.s.sameRequest(k.s) || k.handoffs.count > 0 && !w.s.canTakeOver(k.s) || k.env.isClosed() {
		g.sh.mu.Unlock()
		k.drop()
		g.sh.mu.Lock()
		g.contender = false
		g.promote()
		g.sh.mu.Unlock()
		return
	}
	g.waiters.pop()
	k.opening = opening{}
	k.env.tasks.Begin()
	w.ch <- delivery{role: k.role}
	g.sh.mu.Unlock()
}

// drop ends what belongs to the role.
func (k *contender) drop() {
	if k.watch != nil {
		k.watch.Close()
	}
	k.dropOwner()
	k.role = role{}
}

// dropOwner releases what the role's Owner may have. Another attempt has a fresh one.
func (k *contender) dropOwner() {
	if k.unknown {
		k.env.releaser.Add(driver.Hold{Name: k.s.name, Owner: k.owner, Mode: k.s.mode, TTL: k.s.terms.TTL}, nil)
	}
	k.owner, k.unknown = "", false
}

// enqueue waits in the queue for a lease or for the role of the contender.
func (k *contender) enqueue() (*Lease, error) {
	sh := k.queues.shard(k.s.name)
	sh.mu.Lock()
	g := k.queues.queueOf(sh, k.s.name)
	k.queue = g
	if !g.contender && g.held == nil && g.waiters.head == nil {
		if k.s.alone {
			g.contender = true
			g.refusal = nil
			k.opening = g.history.opening(k.env, k.s.mode, k.start)
			sh.mu.Unlock()
			return k.contend()
		}
		g.tries++
		sh.mu.Unlock()
		return k.tryThenEnqueue()
	}
	w := k.join(g)
	sh.mu.Unlock()
	return k.await(w)
}

// tryThenEnqueue makes one attempt beside the queue, and enters the queue if that is refused: shared
// holds need no order among themselves.
func (k *contender) tryThenEnqueue() (*Lease, error) {
	k.once = true
	lease, err := k.contend()
	e := (*Error)(nil)
	if lease != nil || !errors.Is(err, ErrHeld) && !errors.Is(err, ErrUnavailable) || !errors.As(err, &e) {
		return lease, err
	}
	ended := k.ctx.Err()
	if ended != nil && errors.Is(err, ended) {
		return nil, err
	}
	if k.last = e.Err; ended != nil {
		return nil, k.cut()
	}
	k.once = false
	sh := k.queues.shard(k.s.name)
	sh.mu.Lock()
	w := k.join(k.queues.queueOf(sh, k.s.name))
	if !k.queue.contender {
		k.queue.refusal = k.last
	}
	k.queue.promote()
	sh.mu.Unlock()
	return k.await(w)
}

// join takes the last place in g. sh.mu is held.
func (k *contender) join(g *localQueue) *waiter {
	k.queue = g
	w := g.sh.waiter(k.ctx, k.s)
	g.waiters.push(w)
	return w
}

// await receives what is delivered to w, or leaves the queue when ctx ends.
func (k *contender) await(w *waiter) (*Lease, error) {
	k.emitWaiting(func() { k.leave(w) })
	if k.env.isClosed() {
		// Close may have emptied the queue before w joined it.
		return nil, k.leaveQueue(w, fail(k.op, k.s.name, ErrClosed))
	}
	var d delivery
	select {
	case d = <-w.ch:
	case <-k.ctx.Done():
		return nil, k.leaveQueue(w, nil)
	}
	k.queue.sh.mu.Lock()
	if k.ctx.Err() != nil {
		k.last = k.queue.whyWaiting()
	}
	k.queue.sh.recycle(w)
	k.queue.sh.mu.Unlock()
	return k.receive(d)
}

// receive accepts a delivery, or declines it if ctx has ended.
func (k *contender) receive(d delivery) (*Lease, error) {
	switch {
	case d.err != nil:
		return nil, k.giveUpWaiting(fail(k.op, k.s.name, d.err))
	case k.ctx.Err() != nil:
		k.decline(d)
		return nil, k.giveUpWaiting(k.cut())
	case d.lease != nil:
		if report := k.env.observer.HandedOff; report != nil {
			e := k.event()
			e.Owner, e.Fence = d.lease.h.owner, d.lease.Fence()
			emit(report, e, func() { unlockSilently(k.ctx, d.lease) })
		}
		return d.lease, nil
	}
	k.role = d.role
	defer k.env.tasks.End() // begun with the delivery
	return k.contend()
}

// leaveQueue leaves the queue with err, or with why the wait was cut short.
func (k *contender) leaveQueue(w *waiter, err error) error {
	last := k.leave(w)
	if err == nil {
		k.last = last
		err = k.cut()
	}
	return k.giveUpWaiting(err)
}

// leave leaves the queue, and returns the last answer. It declines a delivery that came meanwhile.
func (k *contender) leave(w *waiter) (last error) {
	sh := k.queue.sh
	sh.mu.Lock()
	last = k.queue.whyWaiting()
	if w.queued {
		k.queue.waiters.remove(w)
		k.queue.promote()
	} else {
		d := <-w.ch
		sh.mu.Unlock()
		k.decline(d)
		sh.mu.Lock()
	}
	sh.recycle(w)
	sh.mu.Unlock()
	return last
}

// decline passes on the delivery to a caller that has given up.
func (k *contender) decline(d delivery) {
	switch {
	case d.err != nil:
	case d.lease != nil:
		k.env.tasks.Begin()
		go unlockDeclined(k.env, k.ctx, d.lease)
	default:
		last := cmp.Or(k.last, d.role.last)
		k.role = d.role
		k.pass()
		k.env.tasks.End()
		k.last = last
	}
}

func unlockDeclined(e *env, ctx context.Context, l *Lease) {
	defer e.tasks.End()
	unlockSilently(ctx, l)
}

// unlockSilently unlocks a lease that no caller has got, and reports nothing. A release without an answer is retried.
func unlockSilently(ctx context.Context, l *Lease) {
	if core := l.core(); core.end(ErrReleased) {
		_ = l.h.unlock(ctx, core, nil)
		return
	}
	l.h.settle()
}
