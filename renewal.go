package distlock

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"math/bits"
	"slices"
	"time"

	"github.com/distlock/distlock/driver"
)

const (
	// maxBatch is how many holds one call of Renew is given: few enough that an Unlock of one
	// of them does not wait long for the others.
	maxBatch = 1000

	// maxRetries is how many calls for holds in doubt run at once. Holds that never get an
	// answer occupy some of them; the others renew the rest.
	maxRetries = 32

	// retryShares is the number of calls that the holds in doubt are shared out to: a hold
	// that blocks its call delays few others, and after an outage few calls renew all.
	retryShares = 8 * maxRetries
)

var errNoAnswer = errors.New("the backend gave no answer for it")

// batch is one call of Renew, or what a claim asks for one hold.
type batch struct {
	holds    []*hold
	requests []driver.Hold
	retry    bool // of holds in doubt
	done     chan struct{}
	ctx      context.Context
	stop     context.CancelFunc // ends the call
}

// scale groups renewals of similar TTL, which may share a call.
func (h *hold) scale() int { return bits.Len64(uint64(h.r.ttl)) }

// split makes batches of holds that are not in doubt. w.mu is held.
func (w *watchdog) split(due map[int][]*hold) []*batch {
	var batches []*batch
	for _, holds := range due {
		for part := range slices.Chunk(holds, maxBatch) {
			batches = append(batches, w.batch(part))
		}
	}
	return batches
}

// retries makes batches of holds in doubt, as long as there is room for another call. Holds
// with fewer attempts come first, and share no call with the others. w.mu is held.
func (w *watchdog) retries() []*batch {
	if w.closed || len(w.doubtful) == 0 || w.retrying == maxRetries {
		return nil
	}
	slices.SortStableFunc(w.doubtful, func(a, b *hold) int {
		return cmp.Or(cmp.Compare(a.r.tries, b.r.tries), cmp.Compare(a.scale(), b.scale()))
	})
	size := min((len(w.doubtful)+retryShares-1)/retryShares, maxBatch)
	var batches []*batch
	for ; len(w.doubtful) > 0 && w.retrying < maxRetries; w.retrying++ {
		n := 1
		for n < min(size, len(w.doubtful)) && w.doubtful[n].r.tries == w.doubtful[0].r.tries && w.doubtful[n].scale() == w.doubtful[0].scale() {
			n++
		}
		b := w.batch(slices.Clone(w.doubtful[:n]))
		b.retry = true
		batches = append(batches, b)
		w.doubtful = slices.Delete(w.doubtful, 0, n)
	}
	return batches
}

// batch plans one call for holds. w.mu is held.
func (w *watchdog) batch(holds []*hold) *batch {
	b := &batch{holds: holds, requests: make([]driver.Hold, len(holds)), done: make(chan struct{})}
	now := w.c.now()
	bound := holds[0].patience(now)
	for i, h := range holds {
		h.r.batch, h.r.waits = b, false
		b.requests[i] = h.request(h.r.ttl)
		bound = min(bound, h.patience(now))
	}
	b.ctx, b.stop = context.WithTimeout(w.c.life, bound)
	return b
}

// patience is how long a call for h may take: a quarter of its TTL. After calls without an
// answer it is half of the time that is left, so that another one follows, and no longer than
// other calls may take, since holds with a shorter TTL wait for the end of such calls.
// w.mu is held.
func (h *hold) patience(now instant) time.Duration {
	left := h.trust() - now
	if h.r.tries > 0 {
		if left > h.r.ttl/30 {
			left /= 2
		}
		left = min(left, max(h.s.callTimeout, defaultCallTimeout(h.r.ttl)))
	}
	return min(left, h.r.ttl/4)
}

// start makes the calls for batches.
func (w *watchdog) start(batches []*batch) {
	for _, b := range batches {
		w.c.tasks.begin()
		go func() {
			defer w.c.tasks.end()
			w.call(b)
		}()
	}
}

// call asks for the renewal of a batch and applies the answers, which it returns: ErrLost also
// for a hold that ended meanwhile.
func (w *watchdog) call(b *batch) []error {
	defer b.stop()
	start := w.c.now()
	answers := w.c.backend.Renew(b.ctx, b.requests)

	errs := make([]error, len(b.holds))
	var lost []*hold
	w.mu.Lock()
	for i, h := range b.holds {
		errs[i] = answer(answers, i)
		h.r.batch = nil
		switch {
		case h.r.index < 0: // it was taken away meanwhile
			errs[i] = cmp.Or(errs[i], ErrLost)
		case errors.Is(errs[i], ErrLost):
			heap.Remove(&w.queue, h.r.index)
			lost = append(lost, h)
		default:
			w.apply(h, start, b.requests[i].TTL, errs[i])
		}
	}
	if b.retry {
		w.retrying--
	}
	more := w.retries()
	w.arm()
	close(b.done)
	w.mu.Unlock()

	w.start(more)
	for _, h := range lost {
		h.lose(errBackend, false)
	}
	w.tell(b, errs)
	return errs
}

// apply enters the answer to a renewal for ttl. w.mu is held.
func (w *watchdog) apply(h *hold, start instant, ttl time.Duration, err error) {
	if err != nil {
		h.retryRenewal(w.c.now(), err)
	} else {
		if !h.r.fixed {
			h.r.ttl = max(h.r.ttl, ttl)
		}
		h.prolong(start, ttl)
	}
	h.r.schedule()
	heap.Fix(&w.queue, h.r.index)
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
	if h.r.fixed || h.r.pinned {
		return
	}
	pause := jitter(backoff(h.r.tries, h.r.ttl/60, h.r.ttl/12))
	h.r.due = now + min(pause, max((h.trust()-now)/4, h.s.ttl/120))
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
