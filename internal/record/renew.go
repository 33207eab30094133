package record

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
)

// atOnce bounds the renewals that are under way at a time for one Renew.
const atOnce = 16

// Renew replaces the record of each hold by the same one.
func (b *Backend) Renew(ctx context.Context, holds []driver.Hold) []error {
	errs := make([]error, len(holds))
	next := make(chan int, len(holds))
	for i := range holds {
		next <- i
	}
	close(next)
	var wg wait.Group
	for range min(atOnce, len(holds)) {
		wg.Go(func() {
			for i := range next {
				errs[i] = wrap("renew", holds[i].Name, b.renew(ctx, &holds[i]))
			}
		})
	}
	wg.Wait()
	return errs
}

func (b *Backend) renew(ctx context.Context, h *driver.Hold) error {
	if err := b.renewable(ctx, h); err != nil {
		return err
	}
	s, err := b.own(ctx, h)
	for range rounds {
		switch {
		case err != nil:
			return err
		case s.Holder != h.Owner:
			return driver.ErrLost
		}
		s, err = b.replace(ctx, h.Name, s, b.renewed(s, h))
		if err == nil || !errors.Is(err, errMoved) {
			return err
		}
		err = nil
	}
	return errMoved
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

// Release replaces the record of h.Owner by a free one.
func (b *Backend) Release(ctx context.Context, h driver.Hold) error {
	return wrap("release", h.Name, b.release(ctx, h))
}

func (b *Backend) release(ctx context.Context, h driver.Hold) error {
	if err := b.usable(ctx); err != nil {
		return err
	}
	s, err := b.own(ctx, &h)
	for range rounds {
		if err != nil {
			return err
		}
		answer := error(nil)
		switch {
		case s.Holder == h.Owner:
		case b.memory.mayTake(h.Owner, s.Version):
			answer = driver.ErrLost // and an attempt that arrives late finds another version
		default:
			b.memory.answered(h.Owner)
			return driver.ErrLost
		}
		s, err = b.replace(ctx, h.Name, s, freed(s))
		switch {
		case err == nil:
			b.memory.answered(h.Owner)
			return answer
		case !errors.Is(err, errMoved):
			return err
		}
		err = nil
	}
	return errMoved
}

// freed returns the record of a lock that is free: it keeps the counter, so that fences rise for ever.
func freed(s sighting) Record { return Record{Counter: s.Counter, Rest: s.Rest} }
