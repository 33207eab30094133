package distlock

import (
	"container/heap"
	"context"
	"time"
)

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
