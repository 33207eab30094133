package connlock

import (
	"context"
	"errors"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
)

// errBusy is returned for a hold whose connection the caller's work has.
var errBusy = errors.New("its transaction is in use by the caller's work, which must end within the TTL")

// Renew sends one statement on each connection that has some of the holds.
func (b *Backend) Renew(ctx context.Context, holds []driver.Hold) []error {
	errs := make([]error, len(holds))
	batches := map[*lockConn]*renewBatch{}
	closed := b.errIfClosed()
	for i, d := range holds {
		h := b.holdOf(d)
		invalid := d.ValidateRenewal()
		switch {
		case closed != nil:
			errs[i] = closed
		case invalid != nil:
			errs[i] = invalid
		case h == nil:
			errs[i] = driver.ErrLost
		case h.working.Load():
			errs[i] = b.wrapError("renew", d.Name, errBusy)
		default:
			t := batches[h.conn]
			if t == nil {
				t = &renewBatch{}
				batches[h.conn] = t
			}
			t.indexes, t.holds, t.ttl = append(t.indexes, i), append(t.holds, h), max(t.ttl, d.TTL)
		}
	}
	var wg wait.Group
	for c, t := range batches {
		wg.Go(func() { t.renew(ctx, c, errs) })
	}
	wg.Wait()
	return errs
}

// renewBatch is what is renewed on one connection.
type renewBatch struct {
	indexes []int // of the holds in the call
	holds   []*connHold
	ttl     time.Duration
}

func (t *renewBatch) renew(ctx context.Context, c *lockConn, errs []error) {
	err := ctx.Err()
	if err == nil {
		err = c.b.detach(ctx, func(own context.Context) error { return c.extend(own, t.ttl) }, func() {})
	}
	for n, i := range t.indexes {
		h := t.holds[n]
		switch {
		case errors.Is(err, driver.ErrClosed):
			errs[i] = err
		case !c.b.isCurrent(h):
			errs[i] = driver.ErrLost
		default:
			errs[i] = c.b.wrapError("renew", h.lock.Name, err)
		}
	}
}
