package renew

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/distlock/distlock/driver"
)

const (
	// maxBatch bounds the holds of one call of Renew, so that an Unlock of one of them does not
	// wait long for the others.
	maxBatch = 500

	// maxSlice bounds the holds that the Watchdog looks at while others wait for its mutex.
	maxSlice = maxBatch

	// maxApply bounds it for the answers of a round, many of which may come at once.
	maxApply = 100

	// maxPause bounds the pause after a slice.
	maxPause = 10 * time.Millisecond

	// maxRetries is how many calls for holds without an answer run at once. Holds that never get an
	// answer occupy some of them; the others renew the rest.
	maxRetries = 32

	// retryShares is the number of calls that such holds are shared out to: a hold
	// that blocks its call delays few others, and after an outage few calls renew all.
	retryShares = 8 * maxRetries
)

// round is one call of Renew, or of a Reservation for one hold.
type round struct {
	holds    []*Hold
	requests []driver.Hold
	retry    bool // of holds without an answer
	done     chan struct{}
	ctx      context.Context
	stop     context.CancelFunc // ends the call
}

// loss is a hold that is no longer trusted.
type loss struct {
	h       *Hold
	why     error
	unknown bool // the backend may still have it
}

// lose ends holds, and returns what reports the losses, which is called once all have ended.
func lose(lost []loss) (reports []func()) {
	for _, l := range lost {
		reports = append(reports, l.h.holder.Lose(l.why, l.unknown))
	}
	return reports
}

func call(reports []func()) {
	for _, report := range reports {
		report()
	}
}

// tick does what is due, a slice at a time: other callers wait for the mutex no longer than for a slice.
func (w *Watchdog) tick() {
	var reports []func()
	for more := true; more; {
		began := w.Now()
		w.mu.Lock()
		w.armed = never
		lost, due := w.collect(began)
		rounds, pause := w.split(due), time.Duration(0)
		// Few calls renew all after an outage, so that the holds to retry are taken early, however many they are.
		more = len(w.queue) > 0 && (w.queue[0].at() <= began || w.queue[0].tries > 0 && w.queue[0].dueBy(began))
		if !more {
			rounds = append(rounds, w.retries()...)
			more = w.roomToRetry()
		}
		if more {
			w.armed = 0 // this goroutine goes on, and no timer
			pause = w.pause(began)
		} else {
			w.arm()
		}
		w.mu.Unlock()

		w.start(rounds)
		reports = append(reports, lose(lost)...)
		if pause > 0 {
			time.Sleep(pause)
		}
	}
	call(reports)
}

// pause returns how long to leave the processor to others before the next slice: as long as the one since began took,
// and no longer than maxPause, unless renewals are late, or a hold is going to be lost. w.mu is held.
func (w *Watchdog) pause(began instant) time.Duration {
	next := w.queue[0]
	if late := began - next.at(); late > next.ttl/8 || next.at() == next.Trust() {
		return 0
	}
	return min(w.Now()-began, maxPause) // the process may have been stopped meanwhile
}

// collect takes due holds from the queue, maxSlice at most, and such that are due soon if there is room in a call. It
// returns the holds whose last renewal was answered, by their scale, and puts the others into w.retry. w.mu is held.
func (w *Watchdog) collect(now instant) (lost []loss, due map[int][]*Hold) {
	due = map[int][]*Hold{}
	for n := 0; n < maxSlice && len(w.queue) > 0 && w.queue[0].dueBy(now); n++ {
		h := w.queue[0]
		if now >= h.Trust() {
			heap.Remove(&w.queue, h.index)
			w.retry.remove(h)
			lost = append(lost, loss{h, h.whyEnded(), true})
			continue
		}
		h.due = never // until the answer
		if h.tries > 0 {
			w.retry.push(h)
		} else {
			due[h.scale()] = append(due[h.scale()], h)
		}
		h.schedule()
		heap.Fix(&w.queue, 0)
	}
	return lost, due
}

// split shares out holds whose last renewal was answered. w.mu is held.
func (w *Watchdog) split(due map[int][]*Hold) []*round {
	var rounds []*round
	for _, holds := range due {
		for part := range slices.Chunk(holds, maxBatch) {
			rounds = append(rounds, w.round(part))
		}
	}
	return rounds
}

// retries shares out holds without an answer, maxSlice or a few more, as long as there is room for another call. Holds
// with fewer attempts come first, and share no call with the others. w.mu is held.
func (w *Watchdog) retries() []*round {
	size := min((w.retry.len()+retryShares-1)/retryShares, maxBatch)
	var rounds []*round
	for n := 0; n < maxSlice && w.roomToRetry(); w.retrying++ {
		r := w.round(w.retry.pop(size))
		r.retry = true
		n += len(r.holds)
		rounds = append(rounds, r)
	}
	return rounds
}

// roomToRetry reports whether holds without an answer wait for a call that may be made. w.mu is held.
func (w *Watchdog) roomToRetry() bool { return len(w.retry) > 0 && w.retrying < maxRetries }

// round plans one call for holds. w.mu is held.
func (w *Watchdog) round(holds []*Hold) *round {
	r := &round{holds: holds, requests: make([]driver.Hold, len(holds)), done: make(chan struct{})}
	now := w.Now()
	bound := holds[0].patience(now)
	for i, h := range holds {
		h.round = r
		r.requests[i] = h.holder.Request(h.ttl)
		bound = min(bound, h.patience(now))
	}
	r.ctx, r.stop = context.WithTimeout(w.Life, bound)
	return r
}

// start makes the calls.
func (w *Watchdog) start(rounds []*round) {
	for _, r := range rounds {
		w.Tasks.Begin()
		go func() {
			defer w.Tasks.End()
			w.call(r)
		}()
	}
}

// call makes the call of a round and applies the answers, which it returns: ErrLost also
// for a hold that ended meanwhile.
func (w *Watchdog) call(r *round) []error {
	defer r.stop()
	start := w.Now()
	answers := w.Renew(r.ctx, r.requests)

	errs, left := make([]error, len(r.holds)), make([]time.Duration, len(r.holds))
	var lost []loss
	w.mu.Lock()
	now := w.Now()
	for i, h := range r.holds {
		if i%maxApply == maxApply-1 { // others may be waiting, behind more rounds
			w.mu.Unlock()
			w.mu.Lock()
			now = w.Now()
		}
		errs[i] = Answer(answers, i)
		left[i] = h.Trust() - now
		h.round = nil
		switch {
		case h.index < 0: // it was taken away meanwhile
			errs[i] = cmp.Or(errs[i], driver.ErrLost)
		case errors.Is(errs[i], driver.ErrLost):
			heap.Remove(&w.queue, h.index)
			lost = append(lost, loss{h, ErrGone, false})
		case errs[i] == nil && now >= h.Trust():
			// The answer came too late: the user may have seen the lease lost. The next tick ends it.
			errs[i] = driver.ErrLost
			h.schedule()
			heap.Fix(&w.queue, h.index)
		default:
			w.apply(h, start, r.requests[i], errs[i])
		}
	}
	if r.retry {
		w.retrying--
	}
	more := w.retries()
	w.arm()
	close(r.done)
	w.mu.Unlock()

	w.start(more)
	call(lose(lost))
	for i, h := range r.holds {
		h.holder.Answered(errs[i], left[i])
	}
	return errs
}

// apply enters the answer to a renewal. w.mu is held.
func (w *Watchdog) apply(h *Hold, start instant, request driver.Hold, err error) {
	if err != nil {
		h.retryLater(w.Now(), err)
	} else {
		if !h.terms.Fixed && !h.kept {
			h.ttl = max(h.ttl, request.TTL)
		}
		h.extendTrust(start, request.TTL)
	}
	h.schedule()
	heap.Fix(&w.queue, h.index)
}

// Answer returns the answer of Renew for its i-th hold.
func Answer(answers []error, i int) error {
	if i >= len(answers) {
		return ErrNoAnswer
	}
	return answers[i]
}
