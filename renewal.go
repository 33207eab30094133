package distlock

import (
	"container/heap"
	"context"
	"errors"
	"math/bits"
	"time"

	"github.com/distlock/distlock/driver"
)

// maxBatch is how many holds one call of Renew is given: few enough that whoever
// unlocks one of them does not wait long for the others.
const maxBatch = 1000

var errNoAnswer = errors.New("the backend gave no answer for it")

// batch is one call of Renew.
type batch struct {
	holds []*hold
	done  chan struct{}
	ctx   context.Context
	stop  context.CancelFunc // of the call; nil for a claim
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
			b.ctx, b.stop = context.WithTimeout(w.c.life, b.bound())
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
	defer b.stop()
	w.call(b.ctx, b, func(h *hold) time.Duration { return h.r.ttl })
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
		if !w.apply(h, start, requests[i].TTL, errs[i]) {
			lost = append(lost, h)
		}
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

// apply enters the answer to a renewal for ttl, and reports false if h is lost. w.mu
// is held.
func (w *watchdog) apply(h *hold, start instant, ttl time.Duration, err error) bool {
	h.r.batch = nil
	switch {
	case h.r.index < 0:
		return true // it was taken away meanwhile
	case errors.Is(err, ErrLost):
		heap.Remove(&w.queue, h.r.index)
		return false
	case err == nil:
		h.prolong(start, ttl)
	default:
		h.retryRenewal(w.c.now(), err)
	}
	h.r.schedule()
	heap.Fix(&w.queue, h.r.index)
	return true
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
	h.r.due = now + min(jitter(backoff(h.r.tries, h.r.ttl/60, h.r.ttl/12)), max((h.trust()-now)/4, h.s.ttl/60))
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
