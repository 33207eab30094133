package record

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
)

// Renew replaces the record of each hold by the same one.
func (b *Backend) Renew(ctx context.Context, holds []driver.Hold) []error {
	errs := make([]error, len(holds))
	Parallel(len(holds), func(i int) { errs[i] = wrap("renew", holds[i].Name, b.renew(ctx, &holds[i])) })
	return errs
}

// AtOnce bounds the requests that are under way at a time for one call.
const AtOnce = 16

// Parallel calls do with each number below n, AtOnce at a time, and returns when all have returned.
func Parallel(n int, do func(i int)) {
	var next atomic.Int64
	var wg wait.Group
	for range min(AtOnce, n) {
		wg.Go(func() {
			for i := int(next.Add(1)); i <= n; i = int(next.Add(1)) {
				do(i - 1)
			}
		})
	}
	wg.Wait()
}

func (b *Backend) renew(ctx context.Context, h *driver.Hold) error {
	if err := b.renewable(ctx, h); err != nil {
		return err
	}
	s, err := b.own(ctx, h)
	if err != nil {
		return err
	}
	_, err = b.change(ctx, h.Name, s, func(s sighting) (Record, error) {
		if s.Holder != h.Owner {
			return Record{}, driver.ErrLost
		}
		return b.renewed(s, h), nil
	})
	return err
}

// renewable returns why h can't be renewed at all.
func (b *Backend) renewable(ctx context.Context, h *driver.Hold) error {
	if err := b.usable(ctx); err != nil {
		return err
	}
	if h.Floor > math.MaxInt64-1 {
		return fmt.Errorf("%w: floor %d: want less than %d", driver.ErrInvalid, h.Floor, uint64(math.MaxInt64))
	}
	if h.Floor > 0 && !b.caps.Floor {
		return fmt.Errorf("%w: a floor of fences, which are the store's", driver.ErrUnsupported)
	}
	return h.ValidateRenewal()
}

// renewed returns the record of a hold that lives on for h.TTL, or for what is left if that is more.
func (b *Backend) renewed(s sighting, h *driver.Hold) Record {
	next := s.Record
	next.TTL = max(h.TTL, s.since.Add(s.TTL).Sub(b.now()))
	next.Counter = max(s.Counter, h.Floor)
	if h.Fence > 0 {
		next.Fence = h.Fence
	}
	return next
}

// Release replaces the record of h.Owner by a free one, which keeps the counter, so that fences rise for ever.
func (b *Backend) Release(ctx context.Context, h driver.Hold) error {
	return wrap("release", h.Name, b.release(ctx, h))
}

func (b *Backend) release(ctx context.Context, h driver.Hold) error {
	if err := b.usable(ctx); err != nil {
		return err
	}
	s, err := b.own(ctx, &h)
	if err != nil {
		return err
	}
	var answer error
	_, err = b.change(ctx, h.Name, s, func(s sighting) (Record, error) {
		answer = nil
		if s.Holder != h.Owner {
			answer = cmp.Or(s.doubt, driver.ErrLost)
			if late, ok := b.memory.unanswered.get(h.Owner); !ok || late != s.Version {
				return Record{}, answer
			} // and an attempt that arrives late finds another version
		}
		return Record{Counter: s.Counter, Rest: s.Rest}, nil
	})
	if err == nil || errors.Is(err, driver.ErrLost) {
		b.memory.unanswered.drop(h.Owner)
	}
	return cmp.Or(err, answer)
}
