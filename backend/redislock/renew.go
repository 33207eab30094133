package redislock

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/distlock/distlock/driver"
)

// batchSize is how many holds one script renews. More would keep other users of the
// server waiting: it runs scripts one after the other.
const batchSize = 500

// maxFloor leaves room for fences above it.
const maxFloor = 1<<63 - 1<<40

// batch are holds that one script can renew together.
type batch struct {
	recipe *recipe
	floor  uint64
	at     []int // their places in the caller's slice
}

// Renew renews all holds in few scripts: one for each mode and 500 holds, and in a cluster
// for each slot. They are sent together, and a server that does not answer delays none
// of the others.
func (b *Backend) Renew(ctx context.Context, holds []driver.Hold) []error {
	errs := make([]error, len(holds))
	for _, h := range holds {
		if !h.Shorten {
			continue
		}
		// It ends the hold, as a release does.
		if err := b.adrift.wait(ctx, h.Owner); err != nil {
			return slices.Repeat([]error{err}, len(holds))
		}
	}
	var wg sync.WaitGroup
	batches := b.batches(holds, errs)
	for _, x := range batches[min(1, len(batches)):] {
		wg.Go(func() { b.renew(ctx, holds, x, errs) })
	}
	if len(batches) > 0 {
		b.renew(ctx, holds, batches[0], errs)
	}
	wg.Wait()
	return errs
}

// share is what the holds of one script have in common.
type share struct {
	mode driver.Mode
	slot int
}

// batches sorts holds by what must go in a script of its own: the mode, the slot in a
// cluster, and a floor.
func (b *Backend) batches(holds []driver.Hold, errs []error) []batch {
	var full, floors []batch
	open := map[share]*batch{}
	for i, h := range holds {
		rec, err := b.recipe(h)
		if err == nil {
			err = checkTTL(h.TTL)
		}
		if err != nil {
			errs[i] = err
			continue
		}
		if h.Floor > maxFloor {
			errs[i] = fmt.Errorf("%w: a floor of %d leaves no fences below 1<<63", driver.ErrInvalid, h.Floor)
			continue
		}
		if h.Floor >= b.layout.span {
			floors = append(floors, batch{recipe: rec, floor: h.Floor, at: []int{i}})
			continue
		}
		at := share{h.Mode, b.client.Slot(b.prefix + h.Name)}
		x := open[at]
		if x == nil {
			x = &batch{recipe: rec}
			open[at] = x
		}
		x.at = append(x.at, i)
		if len(x.at) == batchSize {
			full = append(full, *x)
			delete(open, at)
		}
	}
	for _, x := range open {
		full = append(full, *x)
	}
	return append(full, floors...)
}

// renew fills in the errors of one batch.
func (b *Backend) renew(ctx context.Context, holds []driver.Hold, x batch, errs []error) {
	if b.scriptless != nil {
		b.scriptless.renewBatch(ctx, holds, x, errs)
		return
	}
	keys := make([]string, 0, x.recipe.kept*len(x.at)+1)
	args := make([]string, 0, 2*len(x.at)+1)
	for _, i := range x.at {
		h := holds[i]
		keys = append(keys, x.recipe.keys(b.prefix+h.Name, h.Owner)[:x.recipe.kept]...)
		args = append(args, x.recipe.keepsAs(h.Owner), lifeArg(h))
	}
	if x.floor > 0 {
		keys = append(keys, b.layout.counter(b.prefix, holds[x.at[0]].Name))
		args = append(args, b.layout.floorID(x.floor))
	}
	answers, err := b.keep(ctx, x, keys, args)
	for k, i := range x.at {
		switch {
		case answers != "" && answers[k] == '0':
			errs[i] = driver.ErrLost
		case err != nil:
			errs[i] = fmt.Errorf("redislock: renew: %w", err)
		}
	}
}

// lifeArg returns a hold's TTL as the scripts that renew read it: negative if the life may
// become shorter.
func lifeArg(h driver.Hold) string {
	if h.Shorten {
		return "-" + millis(h.TTL)
	}
	return millis(h.TTL)
}

// keep answers for each hold, if the server has answered. With an error nobody knows
// whether those that are held live on: a replica that has not heard of a renewal, and
// becomes the master, ends them when it would have without.
func (b *Backend) keep(ctx context.Context, x batch, keys, args []string) (string, error) {
	reply, missing, err := b.runAcked(ctx, x.recipe.keep, keys, args)
	if err != nil {
		return "", err
	}
	answers, ok := reply.(string)
	if !ok || len(answers) != len(x.at) {
		return "", errAnswer
	}
	return answers, missing
}
