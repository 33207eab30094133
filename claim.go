package distlock

import (
	"container/heap"
	"context"
	"errors"
	"time"

	"github.com/distlock/distlock/driver"
)

// extend makes h last for at least d from now, for its lease l, by a renewal of its own.
func (w *watchdog) extend(ctx context.Context, stop context.CancelFunc, h *hold, l *Lease, d time.Duration) error {
	b, err := w.claim(ctx, stop, h)
	if err != nil {
		return err
	}
	ttl, err := w.extension(h, d)
	if err == nil && ttl > 0 {
		err = h.asksFor(l, ttl)
	}
	if err != nil || ttl == 0 {
		w.settle(b, h, 0, 0)
		return err
	}
	b.requests = []driver.Hold{h.request(ttl)}
	err = w.call(b)[0]
	if errors.Is(err, ErrLost) {
		h.dropRemains()
	}
	return err
}

// extension is the TTL to ask for so that h lasts for d; 0 if it does anyway.
func (w *watchdog) extension(h *hold, d time.Duration) (time.Duration, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.c.now()
	switch {
	case now+d > h.r.cap:
		return 0, invalid("extension by %v goes beyond MaxHold", d)
	case h.trust()-now >= d:
		return 0, nil
	}
	return d + h.s.margin, nil
}

// claim keeps the watchdog from renewing h, once a renewal in flight is done, so
// that its caller can ask the backend for h. It ends by call or settle. An Unlock that can't wait
// so long stops the call, which is made with ctx.
func (w *watchdog) claim(ctx context.Context, stop context.CancelFunc, h *hold) (*batch, error) {
	for ctx.Err() == nil {
		w.mu.Lock()
		inFlight := h.r.batch
		switch {
		case h.r.index < 0:
			w.mu.Unlock()
			return nil, ErrLost
		case inFlight == nil:
			b := &batch{holds: []*hold{h}, done: make(chan struct{}), ctx: ctx, stop: stop}
			w.unwait(h)
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
