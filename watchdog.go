package distlock

import (
	"container/heap"
	"context"
	"errors"
	"math/bits"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
)

// maxBatch is how many holds one call of Renew is given: few enough that whoever
// unlocks one of them does not wait long for the others.
const maxBatch = 1000

var errNoAnswer = errors.New("the backend gave no answer for it")

// watchdog keeps the holds of a client alive: one timer and one heap for all of
// them, and no goroutine while nothing is due. It renews in batches, ends what
// could not be renewed in time, and warns before. A hold whose renewal had no
// answer leaves the common batch until it has one, so that a dead part of the
// backend does not stall the rest. No deadline waits behind a slow renewal.
type watchdog struct {
	c *Client

	mu     sync.Mutex
	queue  holdQueue
	timer  *time.Timer
	armed  instant // when the timer fires; never if it is not set
	closed bool
}

// renewal is the watchdog's part of a hold.
type renewal struct {
	index  int // in the queue; -1 once removed
	ttl    time.Duration
	next   instant // when the watchdog has to look at it
	due    instant // when to renew; never for a fixed lease
	warn   instant // when to warn; never if that is done or not wanted
	cap    instant // the end by MaxHold
	batch  *batch  // the renewal in flight
	tries  int     // renewals without an answer, in a row
	doubt  error   // what the last of them said
	pinned bool    // MaxHold is what ends it
}

// batch is one call of Renew.
type batch struct {
	holds []*hold
	done  chan struct{}
}

// add puts a hold under watch, trusted for ttl from start. It reports false if the
// client is closed.
func (w *watchdog) add(h *hold, start instant, ttl time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return false
	}
	h.r = renewal{index: -1, ttl: h.s.ttl, cap: never}
	if h.s.maxHold > 0 {
		h.r.cap = start + h.s.maxHold
	}
	h.prolong(start, ttl)
	h.r.schedule()
	heap.Push(&w.queue, h)
	w.arm()
	return true
}

// prolong moves the end of trust after a grant or renewal that was asked for at
// start. w.mu is held.
func (h *hold) prolong(start instant, ttl time.Duration) {
	r := &h.r
	end := start + ttl - h.s.margin
	r.pinned = end >= r.cap
	if r.pinned {
		end = r.cap
	}
	h.end.Store(int64(end))
	r.tries, r.doubt = 0, nil
	r.due, r.warn = never, never
	if !h.s.fixed && !r.pinned {
		r.due = start + ttl/3
	}
	if h.s.warn != nil {
		r.warn = end - h.s.warnBefore
	}
}

// schedule sets next to the first of what may come before the end.
func (r *renewal) schedule() {
	r.next = r.warn
	if r.batch == nil {
		r.next = min(r.next, r.due)
	}
}

// holdQueue is a heap by when a hold is to be looked at.
type holdQueue []*hold

func (q holdQueue) Len() int           { return len(q) }
func (q holdQueue) Less(i, j int) bool { return q[i].at() < q[j].at() }
func (q holdQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].r.index, q[j].r.index = i, j
}
func (q *holdQueue) Push(x any) {
	h := x.(*hold)
	h.r.index = len(*q)
	*q = append(*q, h)
}
func (q *holdQueue) Pop() any {
	last := len(*q) - 1
	h := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	h.r.index = -1
	return h
}

func (h *hold) at() instant { return min(h.r.next, h.trust()) }

// arm sets the timer to the first hold. w.mu is held.
func (w *watchdog) arm() {
	if len(w.queue) == 0 {
		return // a timer that fires for nothing does no harm
	}
	at := w.queue[0].at()
	if w.timer == nil {
		w.armed = at
		w.timer = time.AfterFunc(at-w.c.now(), w.tick)
		return
	}
	if at < w.armed {
		w.armed = at
		w.timer.Reset(at - w.c.now())
	}
}

// tick does what is due.
func (w *watchdog) tick() {
	w.mu.Lock()
	w.armed = never
	var ended, warned []*hold
	due := map[class][]*hold{}
	now := w.c.now()
	for len(w.queue) > 0 && w.queue[0].dueBy(now) {
		h := w.queue[0]
		switch {
		case now >= h.trust():
			heap.Pop(&w.queue)
			ended = append(ended, h)
			continue
		case now >= h.r.warn:
			h.r.warn = never
			warned = append(warned, h)
		default:
			due[h.class()] = append(due[h.class()], h)
			h.r.due = never // until the answer
		}
		h.r.schedule()
		heap.Fix(&w.queue, 0)
	}
	batches := w.split(due)
	w.arm()
	w.mu.Unlock()

	for _, b := range batches {
		w.c.tasks.begin()
		go w.renew(b)
	}
	for _, h := range ended {
		h.lose(h.r.whyEnded(), true)
	}
	for _, h := range warned {
		h.warnHolder()
	}
}

// dueBy reports whether h is to be looked at now. A renewal is taken a little early
// if others are due, so that batches are large and timers few.
func (h *hold) dueBy(now instant) bool {
	return h.at() <= now || h.r.batch == nil && h.at() == h.r.due && h.r.due-h.r.ttl/16 <= now
}

// whyEnded says why trust ended. The hold has left the queue.
func (r *renewal) whyEnded() error {
	switch {
	case r.pinned:
		return errMaxHold
	case r.doubt != nil:
		return r.doubt
	}
	return errDeadline
}

func (h *hold) warnHolder() {
	h.sh.mu.Lock()
	lease := h.lease
	h.sh.mu.Unlock()
	if lease != nil {
		go h.s.warn(lease)
	}
}

// class groups renewals that may share a call: of similar TTL, and in doubt or not.
type class struct {
	scale    int
	doubtful bool
}

func (h *hold) class() class {
	return class{bits.Len64(uint64(h.r.ttl)), h.r.tries > 0}
}

// split makes batches. w.mu is held.
func (w *watchdog) split(due map[class][]*hold) []*batch {
	var batches []*batch
	for _, holds := range due {
		for len(holds) > 0 {
			n := min(len(holds), maxBatch)
			b := &batch{holds: holds[:n:n], done: make(chan struct{})}
			for _, h := range b.holds {
				h.r.batch = b
			}
			batches = append(batches, b)
			holds = holds[n:]
		}
	}
	return batches
}

// renew makes one call for a batch, bounded by a quarter of its smallest TTL.
func (w *watchdog) renew(b *batch) {
	defer w.c.tasks.end()
	ctx, cancel := context.WithTimeout(w.c.life, b.bound())
	defer cancel()
	w.call(ctx, b, func(h *hold) time.Duration { return h.r.ttl })
}

func (b *batch) bound() time.Duration {
	bound := b.holds[0].r.ttl
	for _, h := range b.holds {
		bound = min(bound, h.r.ttl)
	}
	return bound / 4
}

// call asks for the renewal of a batch and applies the answers, which it returns.
func (w *watchdog) call(ctx context.Context, b *batch, ttl func(*hold) time.Duration) []error {
	requests := make([]driver.Hold, len(b.holds))
	for i, h := range b.holds {
		requests[i] = h.request(ttl(h))
	}
	start := w.c.now()
	answers := w.c.backend.Renew(ctx, requests)
	errs := make([]error, len(b.holds))
	var lost []*hold

	w.mu.Lock()
	for i, h := range b.holds {
		errs[i] = answer(answers, i)
		h.r.batch = nil
		if h.r.index < 0 {
			continue // it was taken away meanwhile
		}
		switch {
		case errs[i] == nil:
			h.prolong(start, requests[i].TTL)
		case errors.Is(errs[i], ErrLost):
			heap.Remove(&w.queue, h.r.index)
			lost = append(lost, h)
			continue
		default:
			h.retryRenewal(w.c.now(), errs[i])
		}
		h.r.schedule()
		heap.Fix(&w.queue, h.r.index)
	}
	w.arm()
	close(b.done)
	w.mu.Unlock()

	for _, h := range lost {
		h.lose(errBackend, false)
	}
	w.tell(b, errs)
	return errs
}

// answer is what Renew said of its i-th hold.
func answer(answers []error, i int) error {
	if i >= len(answers) {
		return errNoAnswer
	}
	return answers[i]
}

// retryRenewal plans another renewal soon. w.mu is held.
func (h *hold) retryRenewal(now instant, err error) {
	h.r.doubt = err
	if h.s.fixed || h.r.pinned {
		return
	}
	h.r.due = now + jitter(backoff(h.r.tries, h.r.ttl/60, h.r.ttl/12))
	h.r.tries++
}

// tell tells the observer what became of a batch.
func (w *watchdog) tell(b *batch, errs []error) {
	if w.c.watch.Renewed == nil && w.c.watch.Doubtful == nil {
		return
	}
	for i, h := range b.holds {
		event := Event{Name: h.s.name, Mode: h.s.mode, Owner: h.owner, Err: errs[i]}
		switch {
		case errs[i] == nil:
			emit(w.c.watch.Renewed, event)
		case !errors.Is(errs[i], ErrLost):
			emit(w.c.watch.Doubtful, event)
		}
	}
}

// remove ends the watch over h and waits, until ctx ends, for a renewal in flight:
// after that nothing renews it any more.
func (w *watchdog) remove(ctx context.Context, h *hold) {
	w.mu.Lock()
	b := h.r.batch
	w.take(h)
	w.mu.Unlock()
	if b == nil {
		return
	}
	select {
	case <-b.done:
	case <-ctx.Done():
	}
}

// removeIdle ends the watch over h unless a renewal is in flight, and reports
// whether it did.
func (w *watchdog) removeIdle(h *hold) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if h.r.batch != nil {
		return false
	}
	return w.take(h)
}

// forget ends the watch over h without waiting.
func (w *watchdog) forget(h *hold) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.take(h)
}

// take takes h out of the queue if it is in it. w.mu is held.
func (w *watchdog) take(h *hold) bool {
	if h.r.index < 0 {
		return false
	}
	heap.Remove(&w.queue, h.r.index)
	return true
}

// extend makes h last for at least d from now, by a renewal of its own.
func (w *watchdog) extend(ctx context.Context, h *hold, d time.Duration) error {
	b, err := w.claim(ctx, h)
	if err != nil {
		return err
	}
	if h.trust()-w.c.now() >= d-h.s.margin {
		w.settle(b, h, 0, 0)
		return nil
	}
	if !h.s.fixed {
		w.mu.Lock()
		h.r.ttl = max(h.r.ttl, d)
		w.mu.Unlock()
	}
	return w.call(ctx, b, func(*hold) time.Duration { return d })[0]
}

// claim keeps the watchdog from renewing h, once a renewal in flight is done, so
// that its caller can ask the backend for h. It ends by call or settle.
func (w *watchdog) claim(ctx context.Context, h *hold) (*batch, error) {
	for ctx.Err() == nil {
		w.mu.Lock()
		inFlight := h.r.batch
		switch {
		case h.r.index < 0:
			w.mu.Unlock()
			return nil, ErrLost
		case inFlight == nil:
			b := &batch{holds: []*hold{h}, done: make(chan struct{})}
			h.r.batch = b
			h.r.schedule()
			heap.Fix(&w.queue, h.r.index)
			w.mu.Unlock()
			return b, nil
		}
		w.mu.Unlock()
		select {
		case <-inFlight.done:
		case <-ctx.Done():
		}
	}
	return nil, context.Cause(ctx)
}

// settle ends a claim. A ttl says that h was granted again at start.
func (w *watchdog) settle(b *batch, h *hold, start instant, ttl time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	h.r.batch = nil
	if h.r.index >= 0 {
		if ttl > 0 {
			h.prolong(start, ttl)
		}
		h.r.schedule()
		heap.Fix(&w.queue, h.r.index)
		w.arm()
	}
	close(b.done)
}

// all ends the watch over every hold, for good, and returns them.
func (w *watchdog) all() []*hold {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	if w.timer != nil {
		w.timer.Stop()
	}
	holds := w.queue
	w.queue = nil
	for _, h := range holds {
		h.r.index = -1
	}
	return holds
}
