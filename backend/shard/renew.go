package shard

import (
	"context"
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
	errs := make([]error, len(holds))
	shares := b.shares(holds, errs)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answered := make(chan struct{}, len(shares))
	for m, s := range shares {
		go func() {
			s.renew(ctx, m)
			answered <- struct{}{}
		}()
	}
	var late <-chan time.Time
	for left := len(shares); left > 0; {
		select {
		case <-answered:
			left--
			late = time.After(grace(holds))
		case <-late:
			cancel() // makes them return
		}
	}
	return errs
}

// share has the holds of one member.
type share struct {
	holds []driver.Hold
	errs  []*error // for the answers
}

// shares divides the holds among the members, but for those that no member takes.
func (b *Backend) shares(holds []driver.Hold, errs []error) map[*member]*share {
	shares := map[*member]*share{}
	for i, h := range holds {
		if errs[i] = h.ValidateRenewal(); errs[i] != nil {
			continue
		}
		m := b.memberOf(h.Name)
		if shares[m] == nil {
			shares[m] = &share{}
		}
		shares[m].holds, shares[m].errs = append(shares[m].holds, h), append(shares[m].errs, &errs[i])
	}
	return shares
}

func (s *share) renew(ctx context.Context, m *member) {
	for k, err := range m.Renew(ctx, s.holds) {
		if err != nil {
			*s.errs[k] = m.wrap(err)
		}
	}
}

// grace returns how long to wait for the other members after one has answered.
func grace(holds []driver.Hold) time.Duration {
	shortest := holds[0].TTL
	for _, h := range holds {
		shortest = min(shortest, h.TTL)
	}
	return min(max(shortest/8, 500*time.Millisecond), time.Second)
}
