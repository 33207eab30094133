package shard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/distlock/distlock/driver"
)

// Renew renews at all members at once, each with its own holds. After a member has answered,
// the remaining ones have an eighth of the shortest TTL, but at least half a second and at most a
// second. Then their answers are unknown, so that the other answers are not late.
func (b *Backend) Renew(ctx context.Context, holds []driver.Hold) []error {
	if err := b.calls.Begin(ctx); err != nil {
		return slices.Repeat([]error{err}, len(holds))
	}
	defer b.calls.End()
	n := &memberRenewal{b: b, holds: holds, firsts: make([]error, len(holds)), seconds: make([]error, len(holds))}
	n.run(ctx)
	errs := make([]error, len(holds))
	for i, h := range holds {
		errs[i] = n.decide(i, h)
	}
	return errs
}

// memberRenewal is one call of Renew. Each hold has one answer, or two while its member changes.
type memberRenewal struct {
	b               *Backend
	holds           []driver.Hold
	firsts, seconds []error
}

// share has the holds of one member.
type share struct {
	holds []driver.Hold
	errs  []*error // for the answers
}

// shares divides the holds among the members.
func (n *memberRenewal) shares() map[*member]*share {
	shares := map[*member]*share{}
	add := func(m *member, h driver.Hold, err *error) {
		if shares[m] == nil {
			shares[m] = &share{}
		}
		shares[m].holds, shares[m].errs = append(shares[m].holds, h), append(shares[m].errs, err)
	}
	for i, h := range n.holds {
		if n.firsts[i] = h.ValidateRenewal(); n.firsts[i] != nil {
			continue
		}
		t := n.b.targetOf(h.Name)
		add(t.first, h, &n.firsts[i])
		if t.second != nil {
			add(t.second, h, &n.seconds[i])
		}
	}
	return shares
}

func (n *memberRenewal) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	shares := n.shares()
	answered := make(chan struct{}, len(shares))
	for m, s := range shares {
		go func() {
			n.renew(ctx, m, s)
			answered <- struct{}{}
		}()
	}
	late := time.NewTimer(time.Hour)
	defer late.Stop()
	late.Stop()
	for left := len(shares); left > 0; {
		select {
		case <-answered:
			left--
			late.Reset(n.grace())
		case <-late.C:
			cancel() // makes them return
		}
	}
}

// grace returns how long to wait for the other members after one has answered.
func (n *memberRenewal) grace() time.Duration {
	shortest := n.holds[0].TTL
	for _, h := range n.holds {
		shortest = min(shortest, h.TTL)
	}
	return min(max(shortest/8, 500*time.Millisecond), time.Second)
}

// renew renews one member's share.
func (n *memberRenewal) renew(ctx context.Context, m *member, s *share) {
	longest := time.Duration(0)
	for _, h := range s.holds {
		longest = max(longest, h.TTL)
	}
	if err := n.b.membership.cover(ctx, []*member{m}, longest); err != nil {
		for _, to := range s.errs {
			*to = fmt.Errorf("shard: renew: %v", err) // not a fact about the hold
		}
		return
	}
	for _, h := range s.holds {
		n.b.owners.add(h.Owner, h.Mode, time.Now().Add(h.TTL), false)
	}
	for k, err := range m.Renew(ctx, s.holds) {
		if err != nil {
			*s.errs[k] = m.wrap(err)
		}
	}
}

// decide returns the answer for a hold. A hold that is lost at one of two members is lost. If it was taken here, its
// other half is released, since its owner would not do it. If not, that may be the live hold of a process with one of the lists.
func (n *memberRenewal) decide(i int, h driver.Hold) error {
	for _, err := range []error{n.firsts[i], n.seconds[i]} {
		if errors.Is(err, driver.ErrLost) {
			if n.b.owners.taken(h.Owner) {
				n.b.releaseRest(h)
			}
			n.b.owners.remove(h.Owner)
			return err
		}
	}
	err := cmp.Or(n.firsts[i], n.seconds[i])
	if err == nil {
		n.b.owners.confirm(h.Owner)
	}
	return err
}

// releaseRest releases a hold in the background if it is at two members.
func (b *Backend) releaseRest(h driver.Hold) {
	t := b.targetOf(h.Name)
	if t.second == nil {
		return
	}
	b.calls.Go(func() {
		ctx, cancel := context.WithTimeout(b.calls.Life, roundTimeout)
		defer cancel()
		_ = b.release(ctx, t, h) // if it fails, it ends with its TTL
	})
}
