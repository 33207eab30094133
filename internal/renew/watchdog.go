package renew

import (
	"container/heap"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
)

// Config configures a Watchdog.
type Config struct {
	Life  context.Context                              // of renewals; ends with the client
	Now   func() time.Duration                         // the present instant
	Renew func(context.Context, []driver.Hold) []error // the backend's
	Tasks interface {
		Begin()
		End()
	} // counts the calls that the client's Close waits for
}

// Watchdog keeps the holds of a client alive: one timer and one heap for all of them, and no
// goroutine while nothing is due. It renews in batches, and ends holds that could not be renewed in
// time. A hold whose renewal had no answer leaves the common batch until it has one, and shares its
// next calls with few others or none, so that a dead part of the backend does not stall the rest. No
// deadline waits behind a slow renewal.
type Watchdog struct {
	Config

	mu       sync.Mutex
	queue    holdHeap
	retry    retryQueue
	retrying int // calls in flight for such holds
	timer    *time.Timer
	armed    instant // when the timer fires; never if it is not set
	closed   bool
}

// New returns a Watchdog without holds.
func New(c Config) *Watchdog { return &Watchdog{Config: c, retry: retryQueue{}} }

// Add puts a hold under watch, trusted for ttl from start on. It reports false if the Watchdog has
// ended.
func (w *Watchdog) Add(h *Hold, holder Holder, terms *Terms, start instant, ttl time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return false
	}
	h.holder, h.terms, h.index, h.ttl, h.limit = holder, terms, -1, terms.TTL, never
	if terms.MaxHold > 0 {
		h.limit = start + terms.MaxHold
	}
	h.extendTrust(start, ttl)
	h.schedule()
	heap.Push(&w.queue, h)
	w.arm()
	return true
}

// HandOff reports whether enough of h's TTL is left to hand it off, and counts MaxHold from now on,
// for the next lease. A hold that has just ended by MaxHold is not handed off.
func (w *Watchdog) HandOff(h *Hold, now instant) bool {
	enough := h.terms.TTL / 4
	if h.terms.MaxHold == 0 {
		return h.Trust()-now >= enough
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if h.index < 0 || h.granted-now < enough {
		return false
	}
	h.limit = now + h.terms.MaxHold
	h.setEnd()
	w.reschedule(h)
	return true
}

// Keep renews h, whose leases have ended, for the TTL of its terms until it is removed, even if it is fixed or limited
// by MaxHold.
func (w *Watchdog) Keep(h *Hold) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if h.index < 0 {
		return
	}
	w.leaveRetry(h)
	now := w.Now()
	h.kept, h.ttl, h.limit = true, h.terms.TTL, never
	h.due = min(h.due, now+(h.granted-now)/2)
	h.setEnd()
	w.reschedule(h)
}

// Remove ends the watch over h and waits, until ctx ends, for a call in flight, which it ends
// if that takes long. It reports whether the call is over, so that nothing more is requested for h.
func (w *Watchdog) Remove(ctx context.Context, h *Hold) bool {
	w.mu.Lock()
	r := h.round
	w.take(h)
	w.mu.Unlock()
	if r == nil {
		return true
	}
	t := time.NewTimer(h.terms.CallTimeout / 8)
	defer t.Stop()
	select {
	case <-r.done:
		return true
	case <-t.C:
	}
	r.stop()
	select {
	case <-r.done:
		return true
	case <-ctx.Done():
		return false
	}
}

// RemoveIdle ends the watch over h unless a renewal is in flight, and reports whether it did.
func (w *Watchdog) RemoveIdle(h *Hold) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return h.round == nil && w.take(h)
}

// Forget ends the watch over h without waiting.
func (w *Watchdog) Forget(h *Hold) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.take(h)
}

// InFlight returns a channel that is closed when the call in flight for h is over; nil if there is
// none.
func (w *Watchdog) InFlight(h *Hold) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if h.round == nil {
		return nil
	}
	return h.round.done
}

// Find returns a Holder for which match is true; nil if there is none.
func (w *Watchdog) Find(match func(Holder) bool) Holder {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, h := range w.queue {
		if match(h.holder) {
			return h.holder
		}
	}
	return nil
}

// Close keeps holds from being added, ends the watch over all but those for which keep is true, and returns the Holders
// of all.
func (w *Watchdog) Close(keep func(Holder) bool) []Holder {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	var holders []Holder
	var kept holdHeap
	for _, h := range w.queue {
		holders = append(holders, h.holder)
		if keep(h.holder) {
			h.index = len(kept)
			kept = append(kept, h)
			continue
		}
		w.retry.remove(h)
		h.index = -1
	}
	w.queue = kept
	heap.Init(&w.queue)
	return holders
}

// Stop ends the watch over every hold. It comes after Close.
func (w *Watchdog) Stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer != nil {
		w.timer.Stop()
	}
	for _, h := range w.queue {
		w.retry.remove(h)
		h.index = -1
	}
	w.queue = nil
}

// Reserve keeps the Watchdog from renewing h, once a renewal in flight is done, so that its caller
// can call the backend for h. It ends by one of the Reservation's methods Renew and End. A Remove that
// can't wait so long calls stop, which ends ctx. Reserve returns ErrLost if h is not watched any more.
func (w *Watchdog) Reserve(ctx context.Context, stop context.CancelFunc, h *Hold) (Reservation, error) {
	for ctx.Err() == nil {
		w.mu.Lock()
		inFlight := h.round
		switch {
		case h.index < 0:
			w.mu.Unlock()
			return Reservation{}, driver.ErrLost
		case inFlight == nil:
			r := &round{holds: []*Hold{h}, done: make(chan struct{}), ctx: ctx, stop: stop}
			w.leaveRetry(h)
			h.round = r
			w.reschedule(h)
			w.mu.Unlock()
			return Reservation{w, h, r}, nil
		}
		w.mu.Unlock()
		select {
		case <-inFlight.done:
		case <-ctx.Done():
		}
	}
	if cause := context.Cause(ctx); cause != ctx.Err() {
		// It is the caller's. As part of the error it could say that h is lost.
		return Reservation{}, fmt.Errorf("%w (%v)", ctx.Err(), cause)
	}
	return Reservation{}, ctx.Err()
}

// Reservation is the right to call the backend for a hold.
type Reservation struct {
	w     *Watchdog
	h     *Hold
	round *round
}

// Extension returns the TTL to renew for so that the hold lasts for d; 0 if it does anyway.
func (r Reservation) Extension(d time.Duration) (time.Duration, error) {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	now := r.w.Now()
	switch {
	case now+d > r.h.limit:
		return 0, fmt.Errorf("%w: extension by %v goes beyond MaxHold", driver.ErrInvalid, d)
	case r.h.Trust()-now >= d:
		return 0, nil
	}
	return d + r.h.terms.Margin, nil
}

// Renew renews the hold for ttl, and ends the reservation.
func (r Reservation) Renew(ttl time.Duration) error {
	r.round.requests = []driver.Hold{r.h.holder.Request(ttl)}
	return r.w.call(r.round)[0]
}

// End ends the reservation. A ttl says that the hold was granted again, by a request made at start. An answer that came after
// the end of trust prolongs nothing.
func (r Reservation) End(start instant, ttl time.Duration) {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	r.h.round = nil
	if r.h.index >= 0 {
		if ttl > 0 && r.w.Now() < r.h.Trust() {
			r.h.extendTrust(start, ttl)
		}
		r.w.reschedule(r.h)
	}
	close(r.round.done)
}

// take takes h out of the queue if it is in it. w.mu is held, as in what follows.
func (w *Watchdog) take(h *Hold) bool {
	if h.index < 0 || h.holder == nil {
		return false
	}
	if h.waiting != nil {
		w.leaveRetry(h)
	}
	heap.Remove(&w.queue, h.index)
	return true
}

// leaveRetry takes h from the holds that wait for a retry: it is due.
func (w *Watchdog) leaveRetry(h *Hold) {
	if w.retry.remove(h) {
		h.due = w.Now()
	}
}

func (w *Watchdog) reschedule(h *Hold) {
	h.schedule()
	heap.Fix(&w.queue, h.index)
	w.arm()
}

// arm sets the timer to the first hold.
func (w *Watchdog) arm() {
	if len(w.queue) == 0 {
		return // a timer that fires for nothing does no harm
	}
	at := w.queue[0].at()
	if w.timer == nil {
		w.armed = at
		w.timer = time.AfterFunc(at-w.Now(), w.tick)
		return
	}
	if at < w.armed {
		w.armed = at
		w.timer.Reset(at - w.Now())
	}
}
