package distlock

import (
	"container/heap"
	"context"
	"slices"
	"sync"
	"time"
)

// watchdog keeps the holds of a client alive: one timer and one heap for all of
// them, and no goroutine while nothing is due. It renews in batches, ends what
// could not be renewed in time, and warns before. A hold whose renewal had no
// answer leaves the common batch until it has one, and shares its next calls with few
// others or none, so that a dead part of the backend does not stall the rest. No deadline
// waits behind a slow renewal.
type watchdog struct {
	c *Client

	mu       sync.Mutex
	queue    holdQueue
	doubtful []*hold // due again after no answer; they wait for room among the retries
	retrying int     // calls in flight for holds in doubt
	timer    *time.Timer
	armed    instant // when the timer fires; never if it is not set
	closed   bool
}

// renewal is the watchdog's part of a hold, guarded by its mutex. Calls to the backend are
// made from a batch's copy.
type renewal struct {
	index   int // in the queue; -1 once removed
	ttl     time.Duration
	next    instant // when the watchdog has to look at it
	due     instant // when to renew, unless it is pinned; never for a fixed lease
	warn    instant // when to warn; never if that is done or not wanted
	granted instant // the end by the last answer of the backend
	cap     instant // the end by MaxHold
	batch   *batch  // the renewal in flight
	tries   int     // renewals without an answer, in a row
	doubt   error   // what the last of them said
	pinned  bool    // MaxHold is what ends it
	fixed   bool    // it is not renewed by itself
	waits   bool    // it is in watchdog.doubtful
}

// add puts a hold under watch, trusted for ttl from start. It reports false if the
// client is closed.
func (w *watchdog) add(h *hold, start instant, ttl time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return false
	}
	h.r = renewal{index: -1, ttl: h.s.ttl, cap: never, fixed: h.s.fixed}
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
// start, and never back: neither shortens a life at the backend. w.mu is held.
func (h *hold) prolong(start instant, ttl time.Duration) {
	r := &h.r
	r.granted = max(start+ttl-h.s.margin, r.granted)
	r.tries, r.doubt = 0, nil
	r.due, r.warn = never, never
	if !r.fixed {
		r.due = start + ttl/3
	}
	h.setEnd()
	if h.s.warn != nil {
		r.warn = h.trust() - h.s.warnBefore
	}
}

// setEnd sets the end of trust to the first of what ends it. w.mu is held.
func (h *hold) setEnd() {
	r := &h.r
	r.pinned = r.granted >= r.cap
	h.end.Store(int64(min(r.granted, r.cap)))
}

// handOn reports whether enough of h's TTL is left to hand it on, and counts MaxHold from now
// on, for the next lease. A hold that has just ended by MaxHold is not handed on.
func (w *watchdog) handOn(h *hold, now instant) bool {
	enough := h.s.ttl / 4
	if h.s.maxHold == 0 {
		return h.trust()-now >= enough
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if h.r.index < 0 || h.r.granted-now < enough {
		return false
	}
	h.r.cap = now + h.s.maxHold
	h.setEnd()
	h.r.schedule()
	heap.Fix(&w.queue, h.r.index)
	w.arm()
	return true
}

// schedule sets next to the first of what may come before the end.
func (r *renewal) schedule() {
	r.next = r.warn
	if r.batch == nil && !r.pinned {
		r.next = min(r.next, r.due)
	}
}

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
	ended, warned, due := w.collect(w.c.now())
	batches := append(w.split(due), w.retries()...)
	w.arm()
	w.mu.Unlock()

	w.start(batches)
	for _, e := range ended {
		e.h.lose(e.why, true)
	}
	for _, h := range warned {
		h.warnHolder()
	}
}

// ending is a hold that is no longer trusted.
type ending struct {
	h   *hold
	why error
}

// collect takes what is due from the queue: by their scale those that are not in doubt, whereas
// the others go to w.doubtful. w.mu is held.
func (w *watchdog) collect(now instant) (ended []ending, warned []*hold, due map[int][]*hold) {
	due = map[int][]*hold{}
	for len(w.queue) > 0 && w.queue[0].dueBy(now) {
		h := w.queue[0]
		switch {
		case now >= h.trust():
			w.take(h)
			ended = append(ended, ending{h, h.r.whyEnded()})
			continue
		case now >= h.r.warn:
			h.r.warn = never
			warned = append(warned, h)
		default:
			h.r.due = never // until the answer
			if h.r.waits = h.r.tries > 0; h.r.waits {
				w.doubtful = append(w.doubtful, h)
			} else {
				due[h.scale()] = append(due[h.scale()], h)
			}
		}
		h.r.schedule()
		heap.Fix(&w.queue, 0)
	}
	return ended, warned, due
}

// dueBy reports whether h is to be looked at now. A renewal is taken a little early
// if others are due, so that batches are large and timers few.
func (h *hold) dueBy(now instant) bool {
	return h.at() <= now || h.r.batch == nil && !h.r.pinned && h.at() == h.r.due && h.r.due-h.r.ttl/16 <= now
}

// whyEnded says why trust ended.
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
	if l := h.outermost(); l != nil {
		go h.s.warn(l.handle())
	}
}

// remove ends the watch over h and waits, until ctx ends, for a call in flight, which it ends
// if that takes long. It reports whether the call is over, so that nothing more is asked for h.
func (w *watchdog) remove(ctx context.Context, h *hold) bool {
	w.mu.Lock()
	b := h.r.batch
	w.take(h)
	w.mu.Unlock()
	if b == nil {
		return true
	}
	t := time.NewTimer(h.s.callTimeout / 8)
	defer t.Stop()
	select {
	case <-b.done:
		return true
	case <-t.C:
	}
	b.stop()
	select {
	case <-b.done:
		return true
	case <-ctx.Done():
		return false
	}
}

// keep renews h, whose leases have ended, until it is removed: also if it was not to be, or
// for no longer than MaxHold.
func (w *watchdog) keep(h *hold) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if h.r.index < 0 {
		return
	}
	w.unwait(h)
	h.r.fixed, h.r.pinned, h.r.cap, h.r.due = false, false, never, w.c.now()
	h.r.schedule()
	heap.Fix(&w.queue, h.r.index)
	w.arm()
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

// inFlight is closed when the call under way for h is over; nil if there is none.
func (w *watchdog) inFlight(h *hold) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if h.r.batch == nil {
		return nil
	}
	return h.r.batch.done
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
	w.unwait(h)
	heap.Remove(&w.queue, h.r.index)
	return true
}

// unwait takes h from those in doubt that wait for a call: it is due. w.mu is held.
func (w *watchdog) unwait(h *hold) {
	if !h.r.waits {
		return
	}
	h.r.waits, h.r.due = false, w.c.now()
	i := slices.Index(w.doubtful, h)
	w.doubtful = slices.Delete(w.doubtful, i, i+1)
}

// find is the hold of an Owner; nil if there is none.
func (w *watchdog) find(owner string) *hold {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, h := range w.queue {
		if h.owner == owner {
			return h
		}
	}
	return nil
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
	w.queue, w.doubtful = nil, nil
	for _, h := range holds {
		h.r.index, h.r.waits = -1, false
	}
	return holds
}
