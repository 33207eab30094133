package redislock

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
)

// batchSize is how many holds one script renews. More would keep other users of the
// server waiting: it runs scripts one after the other.
const batchSize = 500

// maxFloor leaves room for fences above it.
const maxFloor = 1<<63 - 1<<40

// Renew renews all holds in few scripts: one for each mode and 500 holds, and in a cluster
// for each slot. They are sent together, and a server that does not answer delays none
// of the others.
func (b *Backend) Renew(ctx context.Context, holds []driver.Hold) []error {
	errs := make([]error, len(holds))
	renew := func(x renewBatch) {
		for k, err := range b.storage.renew(ctx, x) {
			if err != nil && !errors.Is(err, driver.ErrLost) {
				err = fmt.Errorf("redislock: renew: %w%s", err, b.hint(err))
			}
			errs[x.at[k]] = err
		}
	}
	var wg wait.Group
	batches := b.batches(holds, errs)
	for _, x := range batches[min(1, len(batches)):] {
		wg.Go(func() { renew(x) })
	}
	if len(batches) > 0 {
		renew(batches[0])
	}
	wg.Wait()
	return errs
}

// batchKey has the properties that all holds of a batch share.
type batchKey struct {
	mode driver.Mode
	slot int
}

// batches sorts holds by mode, and in a cluster by slot. A hold with a floor has a batch of its own.
func (b *Backend) batches(holds []driver.Hold, errs []error) []renewBatch {
	var full []renewBatch
	open := map[batchKey]*renewBatch{}
	for i, h := range holds {
		rec, err := b.checkRenewal(h)
		if err != nil {
			errs[i] = err
			continue
		}
		if h.Floor >= b.layout.span {
			full = append(full, renewBatch{recipe: rec, floor: h.Floor, holds: holds[i : i+1], at: []int{i}})
			continue
		}
		key := batchKey{h.Mode, b.client.Slot(b.prefix + h.Name)}
		x := open[key]
		if x == nil {
			x = &renewBatch{recipe: rec}
			open[key] = x
		}
		x.holds, x.at = append(x.holds, h), append(x.at, i)
		if len(x.at) == batchSize {
			full = append(full, *x)
			delete(open, key)
		}
	}
	for _, x := range open {
		full = append(full, *x)
	}
	return full
}

func (b *Backend) checkRenewal(h driver.Hold) (*recipe, error) {
	rec, err := b.recipe(h)
	if err == nil {
		err = h.ValidateRenewal()
	}
	if err == nil && h.Floor > maxFloor {
		err = fmt.Errorf("%w: a floor of %d leaves no fences below 1<<63", driver.ErrInvalid, h.Floor)
	}
	return rec, err
}

// renew runs the script that renews.
func (s scripted) renew(ctx context.Context, x renewBatch) []error {
	reply, err := s.run(ctx, x.recipe.renew, s.renewCall(x))
	return renewals(x, reply, err)
}

func (s *store) renewCall(x renewBatch) call {
	keys := words((x.recipe.renewalKeys+2)*len(x.holds) + 2)
	var own []string
	for _, h := range x.holds {
		own = x.recipe.keys(own[:0], s.prefix+h.Name, h.Owner)
		keys = append(keys, own[:x.recipe.renewalKeys]...)
	}
	if x.floor > 0 {
		keys = append(keys, s.layout.counter(s.prefix, x.holds[0].Name))
	}
	c := newCall(keys)
	for _, h := range x.holds {
		c.add(x.recipe.renewalField(h.Owner), millis(h.TTL))
	}
	if x.floor > 0 {
		c.add(s.layout.floorID(x.floor))
	}
	return c
}

// renewals reads the reply for a batch: a 0 for each hold that is lost. With err, it is
// unknown whether the others live on.
func renewals(x renewBatch, reply any, err error) []error {
	answers := text(reply)
	if err == nil && len(answers) != len(x.holds) {
		err = errAnswer
	}
	errs := slices.Repeat([]error{err}, len(x.holds))
	if len(answers) == len(x.holds) {
		for i := range errs {
			if answers[i] == '0' {
				errs[i] = driver.ErrLost
			}
		}
	}
	return errs
}
