package redislock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/distlock/distlock/backend/redislock/internal/layouts"
	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
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
	renew := func(some *batch) {
		for k, err := range b.storage.Renew(ctx, some.holds) {
			if err != nil && !errors.Is(err, driver.ErrLost) {
				err = fmt.Errorf("redislock: renew: %w%s", err, b.hint(err))
			}
			errs[some.at[k]] = err
		}
	}
	var wg wait.Group
	batches := b.batches(holds, errs)
	for _, some := range batches[min(1, len(batches)):] {
		wg.Go(func() { renew(some) })
	}
	if len(batches) > 0 {
		renew(batches[0])
	}
	wg.Wait()
	return errs
}

// batch has holds that are renewed together.
type batch struct {
	holds []driver.Hold
	at    []int // their indices in the caller's slice
}

// batches sorts holds by mode, and in a cluster by slot. A hold with a floor has a batch of its own.
func (b *Backend) batches(holds []driver.Hold, errs []error) []*batch {
	type group struct {
		mode driver.Mode
		slot int
	}
	var all []*batch
	open := map[group]*batch{}
	for i, h := range holds {
		if errs[i] = b.checkRenewal(h); errs[i] != nil {
			continue
		}
		g := group{h.Mode, b.client.Slot(b.layout.Prefix + h.Name)}
		some := open[g]
		if some == nil || len(some.holds) == batchSize || h.Floor >= b.layout.Span {
			some = &batch{}
			all = append(all, some)
			if h.Floor < b.layout.Span {
				open[g] = some
			}
		}
		some.holds, some.at = append(some.holds, h), append(some.at, i)
	}
	return all
}

func (b *Backend) checkRenewal(h driver.Hold) error {
	err := b.check(h)
	if err == nil {
		err = h.ValidateRenewal()
	}
	if err == nil && h.Floor > maxFloor {
		err = fmt.Errorf("%w: a floor of %d leaves no fences below 1<<63", driver.ErrInvalid, h.Floor)
	}
	return err
}

// Renew runs the script that renews. While the slot moves, some of the holds may have gone: each is renewed by itself.
func (s *scripted) Renew(ctx context.Context, holds []driver.Hold) []error {
	keys, args := s.renewing(holds)
	reply, err := s.run(ctx, s.scripts[holds[0].Mode].renew, keys, args)
	errs := renewals(len(holds), reply, err)
	if len(holds) > 1 && redisconn.Apart(err) {
		var wg wait.Group
		for i := range holds {
			wg.Go(func() { errs[i] = s.Renew(ctx, holds[i:i+1])[0] })
		}
		wg.Wait()
	}
	return errs
}

func (s *scripted) renewing(holds []driver.Hold) (keys, args []string) {
	m := s.layout.Mode(holds[0].Mode)
	keys, args = make([]string, 0, m.RenewalKeys*len(holds)+1), make([]string, 0, 3*len(holds)+1)
	var own []string
	ttl, ms := time.Duration(0), ""
	for _, h := range holds {
		own = append(own[:0], s.layout.Prefix+h.Name)
		if m.RenewalKeys > 1 {
			own = m.Keys(own[:0], own[0], h.Owner)
		}
		if h.TTL != ttl { // nearly all have the same
			ttl, ms = h.TTL, layouts.Millis(h.TTL)
		}
		keys = append(keys, own[:m.RenewalKeys]...)
		args = append(args, m.RenewalField(h.Owner), ms)
		if m.WritesFence {
			args = append(args, s.layout.ID(h.Fence))
		}
	}
	if floor := holds[0].Floor; floor >= s.layout.Span {
		keys, args = append(keys, s.layout.Counter(holds[0].Name)), append(args, s.layout.FloorID(floor))
	}
	return keys, args
}

// renewals reads the reply for n holds: a 0 for each hold that is lost. With err, it is
// unknown whether the others live on.
func renewals(n int, reply any, err error) []error {
	answers := redisconn.Text(reply)
	if err == nil && len(answers) != n {
		err = redisconn.ErrUnexpected
	}
	errs := slices.Repeat([]error{err}, n)
	if len(answers) == n {
		for i := range errs {
			switch answers[i] {
			case '0':
				errs[i] = driver.ErrLost
			case '1':
			default:
				errs[i] = redisconn.ErrUnexpected
			}
		}
	}
	return errs
}
