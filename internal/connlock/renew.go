package connlock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
)

// errBusy is the answer for a hold whose link is at work.
var errBusy = errors.New("its transaction is at the caller's work, which must end within the TTL")

// Renew sends one statement for each link that has some of the holds.
func (b *Backend) Renew(ctx context.Context, holds []driver.Hold) []error {
	errs := make([]error, len(holds))
	batches := map[*lockConn]*renewBatch{}
	for i, d := range holds {
		if errs[i] = b.validate(d); errs[i] != nil {
			continue
		}
		h := b.holdOf(d)
		switch {
		case h == nil:
			errs[i] = driver.ErrLost
		case h.isWorking():
			errs[i] = b.wrapError("renew", d.Name, errBusy)
		default:
			if batches[h.conn] == nil {
				batches[h.conn] = &renewBatch{}
			}
			batches[h.conn].add(i, h, d.TTL)
		}
	}
	var wg sync.WaitGroup
	for s, some := range batches {
		wg.Go(func() { some.renew(ctx, s, errs) })
	}
	wg.Wait()
	return errs
}

// renewBatch is what is to be renewed on one link.
type renewBatch struct {
	at    []int
	holds []*connHold
	ttl   time.Duration
}

func (t *renewBatch) add(i int, h *connHold, ttl time.Duration) {
	t.at, t.holds, t.ttl = append(t.at, i), append(t.holds, h), max(t.ttl, ttl)
}

func (t *renewBatch) renew(ctx context.Context, s *lockConn, errs []error) {
	err := ctx.Err()
	if err == nil {
		err = s.b.detach(ctx, func(own context.Context) error { return s.extend(own, t.ttl) }, func() {})
	}
	for n, i := range t.at {
		h := t.holds[n]
		switch {
		case errors.Is(err, driver.ErrClosed):
			errs[i] = err
		case !s.b.isCurrent(h):
			errs[i] = driver.ErrLost
		default:
			errs[i] = s.b.wrapError("renew", h.lock.Name, err)
		}
	}
}

func (h *connHold) isWorking() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.working
}
