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
	maxWait     = time.Second           // a wait for a signal ends after about this
	minRetry    = 50 * time.Millisecond // HeldError.Retry is not trusted below
	defaultPoll = 10 * time.Millisecond
	firstPause  = 20 * time.Millisecond // after an unknown answer, doubling to maxWait
	longAgo     = -time.Hour
)

var errLate = errors.New("the grant arrived after its own end")

// contender is a caller that talks to the backend.
type contender struct {
	role
	c       *Client
	g       *gate // nil for fair locks, which have a place of their own at the backend
	s       *spec
	op      string
	ctx     context.Context
	start   instant
	once    bool // a try: one attempt, beside the line
	waits   bool // the observer knows
	unwatch bool // the backend has no watch
	round   int
}

func (k *contender) cut() error { return cutShort(k.op, k.s.name, k.ctx, k.last) }

func (k *contender) tellWaiting() {
	if !k.waits {
		k.waits = true
		emit(k.c.watch.Waiting, Event{Name: k.s.name, Mode: k.s.mode})
	}
}

func (k *contender) giveUpWaiting(err error) error {
	if k.waits {
		emit(k.c.watch.GaveUp, Event{Name: k.s.name, Mode: k.s.mode, Waited: k.c.now() - k.start, Err: err})
	}
	return err
}

// contend is the waiting loop: try, arm the watch, try again, wait, and so on. The
// attempt that succeeds is a fresh grant, anchored before its own call: nothing is
// inferred from having been next in line.
func (k *contender) contend() (*Lease, error) {
	k.c.tasks.Begin()
	defer k.c.tasks.End()
	if k.c.isClosed() {
		return nil, k.leave(fail(k.op, k.s.name, ErrClosed))
	}
	if err := k.letOthersGoFirst(); err != nil {
		return nil, k.leave(err)
	}
	for {
		lease, err := k.attempt()
		switch {
		case lease != nil:
			return lease, nil
		case driver.Final(err) && k.c.isClosed():
			return nil, k.leave(fail(k.op, k.s.name, ErrClosed))
		case driver.Final(err):
			return nil, k.leave(fail(k.op, k.s.name, err))
		}
		k.note(err) // before a Close, too, which releases what had no answer
		if k.c.isClosed() {
			return nil, k.leave(fail(k.op, k.s.name, ErrClosed))
		}
		if k.ctx.Err() != nil {
			return nil, k.leave(k.cut())
		}
		if k.once {
			return nil, k.leave(fail(k.op, k.s.name, err))
		}
		k.tellWaiting()
		if k.arm() {
			continue
		}
		if err := k.pause(k.bound()); err != nil {
			return nil, k.leave(err)
		}
		k.round++
	}
}

func (k *contender) letOthersGoFirst() error {
	if k.yield == 0 {
		return nil
	}
	if k.listen {
		k.arm()
	}
	return k.pause(k.yield)
}

// attempt asks the backend once.
func (k *contender) attempt() (*Lease, error) {
	if err := k.c.releaser.room(); err != nil {
		return nil, err
	}
	if k.owner == "" {
		k.owner = driver.NewOwner()
	}
	news := &news{}
	ctx, cancel := k.c.calls.context(k.ctx, k.s.terms.CallTimeout)
	start := k.c.now()
	grant, err := k.c.backend.Acquire(ctx, k.request(news.tell))
	cancel()
	if err != nil {
		return nil, err
	}
	now := k.c.now()
	k.unsure = true
	switch {
	case now >= start+k.s.trusted(grant)-k.s.terms.Margin:
		return nil, errLate
	case k.ctx.Err() != nil:
		return nil, k.ctx.Err()
	case k.row.count > 0 && grant.Queued:
		return nil, k.standBack()
	}
	return k.granted(news, start, now, grant)
}

// standBack gives back a hold that was to be handed on, since the re-fence showed
// that somebody elsewhere stands in line. Its Owner asks no more: a release without an
// answer may land late.
func (k *contender) standBack() error {
	k.drop()
	return &HeldError{}
}

// request is what the backend is asked for.
func (k *contender) request(onLost func()) driver.Request {
	r := driver.Request{
		Hold:  driver.Hold{Name: k.s.name, Owner: k.owner, Mode: k.s.mode, TTL: k.s.terms.TTL},
		Limit: k.s.limit, Fixed: k.s.terms.Fixed, Queue: k.queues(), Fences: 1, Meta: k.s.meta, OnLost: onLost,
	}
	if k.s.revoked != nil {
		if k.wish == nil {
			k.wish = &news{wish: true}
		}
		r.OnRevoke = k.wish.tell
	}
	if k.s.passable() && (k.c.caps.QueueingOf(k.s.mode) == driver.QueueNever || k.c.caps.SpanLife > 0) {
		r.Fences = uint64(k.s.handoffMax) + 1
	}
	return r
}

// queues reports whether a refused attempt leaves a place in line.
func (k *contender) queues() bool {
	line := k.c.caps.QueueingOf(k.s.mode)
	return !k.once && (line == driver.QueueAlways || line == driver.QueueOnRequest && k.s.fair)
}

// granted makes the lease, and gives the role free.
func (k *contender) granted(news *news, start, now instant, grant driver.Grant) (*Lease, error) {
	h := &hold{
		c: k.c, s: k.s, sh: k.c.shard(k.s.name), owner: k.owner, mode: k.s.mode,
		next: grant.Fence, last: grant.Last(), queued: grant.Queued, told: now, row: k.row,
	}
	if h.row.count == 0 {
		h.row.since = now
	}
	h.asked.Store(int64(h.s.terms.TTL))
	lease := h.newLease(k.ctx, now)
	if !k.c.watchdog.Add(&h.life, h, &k.s.terms, start, k.s.trusted(grant)) {
		return nil, ErrClosed
	}
	k.settle(h, now-start)
	if k.watch != nil {
		k.watch.Close()
		k.watch = nil
	}
	news.attach(h)
	if k.s.revoked != nil {
		k.wish.attach(h)
	}
	emit(k.c.watch.Granted, Event{Name: k.s.name, Mode: k.s.mode, Owner: h.owner, Fence: grant.Fence, Waited: now - k.start})
	return lease, nil
}

// settle enters a new hold at the gate.
func (k *contender) settle(h *hold, rtt time.Duration) {
	if k.g == nil {
		return
	}
	g := k.g
	g.sh.mu.Lock()
	defer g.sh.mu.Unlock()
	g.past.rtt = rtt
	if k.once {
		g.tries--
	} else {
		g.contender = false
		g.refusal = nil
	}
	if k.s.mode.Alone() && !h.ended {
		h.g = g
		g.held = h
	}
	g.promote()
}

// note remembers what an attempt was answered.
func (k *contender) note(err error) {
	held := errors.Is(err, ErrHeld)
	if held {
		k.row = row{}
	}
	// An attempt without an answer may land after later ones were answered.
	k.unsure = k.unsure || !errors.Is(err, driver.ErrUnsent) && (!held || k.queues())
	if k.ctx.Err() != nil && !held {
		err = cmp.Or(k.last, renew.ErrNoAnswer)
	}
	k.last = err
	if k.g == nil {
		return
	}
	k.g.sh.mu.Lock()
	defer k.g.sh.mu.Unlock()
	if held && k.g.held == nil {
		k.g.past.foreign = k.c.now()
	}
	if !k.once {
		k.g.refusal = err
	}
}

// arm arms the watch and reports whether it did so just now: then what happened
// before it was armed must be looked at by another attempt.
func (k *contender) arm() bool {
	w, ok := k.c.backend.(driver.Watcher)
	if !ok || k.watch != nil || k.unwatch || k.last != nil && !errors.Is(k.last, ErrHeld) {
		return false
	}
	if k.owner == "" {
		k.owner = driver.NewOwner()
	}
	ctx, cancel := context.WithTimeout(k.ctx, k.s.terms.CallTimeout)
	defer cancel()
	watch, err := w.Watch(ctx, k.request(nil))
	if errors.Is(err, driver.ErrSkip) {
		k.unwatch = true
		return false
	}
	// A backend that waits natively may take the lock for this Owner from now on.
	k.unsure = k.unsure || !errors.Is(err, driver.ErrUnsent)
	if err != nil {
		return false
	}
	k.watch = &watch
	return true
}

// bound is how long to wait for a signal before the next attempt.
func (k *contender) bound() time.Duration {
	held := (*HeldError)(nil)
	if !errors.As(k.last, &held) {
		return wait.Jitter(wait.Backoff(k.round, firstPause, min(maxWait, k.s.terms.TTL/3)))
	}
	d := maxWait
	if k.watch == nil {
		d = k.pollPause()
	}
	if k.queues() {
		// The place in line lives for a TTL after the last attempt.
		d = min(d, k.s.terms.TTL/5)
	}
	d = wait.Jitter(d)
	if held.Retry > 0 {
		d = min(d, max(held.Retry, minRetry)+time.Millisecond)
	}
	return d
}

func (k *contender) pollPause() time.Duration {
	poll := k.c.caps.Poll
	if poll <= 0 {
		poll = defaultPoll
	}
	return wait.Backoff(k.round/2, poll, 16*poll)
}

// pause waits for a signal, for d, or for the end of it all.
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
	case <-k.c.done:
		return fail(k.op, k.s.name, ErrClosed)
	}
	return nil
}

// leave ends the contender without a lease: the role passes on.
func (k *contender) leave(err error) error {
	k.pass()
	return k.giveUpWaiting(err)
}

// pass gives the role to the next in line, or gives it up.
func (k *contender) pass() {
	g := k.g
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
	w := g.line.head
	if w == nil || !w.s.sameRequest(k.s) || k.row.count > 0 && !w.s.heirTo(k.s) || k.c.isClosed() {
		g.sh.mu.Unlock()
		k.drop()
		g.sh.mu.Lock()
		g.contender = false
		g.promote()
		g.sh.mu.Unlock()
		return
	}
	g.line.pop()
	k.yield = 0
	k.c.tasks.Begin()
	w.ch <- delivery{role: k.role}
	g.sh.mu.Unlock()
}

// drop ends what belongs to the role.
func (k *contender) drop() {
	if k.watch != nil {
		k.watch.Close()
	}
	if k.unsure {
		k.c.abandon(driver.Hold{Name: k.s.name, Owner: k.owner, Mode: k.s.mode, TTL: k.s.terms.TTL}, nil)
	}
	k.role = role{}
}
