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
	now := w.c.now()
	if h.trust()-now >= d || now+d > h.r.cap {
		w.settle(b, h, 0, 0)
		if now+d > h.r.cap {
			return invalid("extension by %v goes beyond MaxHold", d)
		}
		return nil
	}
	ttl := d + h.s.margin
	if most := w.c.caps.MaxTTL; most > 0 {
		ttl = min(ttl, most)
	}
	h.asked.Store(int64(max(h.asks(), ttl)))
	err = w.call(ctx, b, func(*hold) time.Duration { return ttl })[0]
	if err != nil {
		return err
	}
	if !w.keepRenewingBy(h, ttl) {
		h.dropRemains()
		return ErrLost
	}
	return nil
}

// keepRenewingBy makes later renewals be for at least ttl; false if h is lost.
func (w *watchdog) keepRenewingBy(h *hold, ttl time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !h.r.fixed {
		h.r.ttl = max(h.r.ttl, ttl)
	}
	return h.r.index >= 0
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
