package shard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/distlock/distlock/driver"
)

// Renew asks the members at the same time, each for its own holds. When all but some have
// answered these have an eighth of the shortest TTL left, from half a second to a second: what they did
// not answer is unknown then, and the answers of the others are not late.
func (b *Backend) Renew(ctx context.Context, holds []driver.Hold) []error {
	errs := make([]error, len(holds))
	if err := b.begin(ctx); err != nil {
		for i := range errs {
			errs[i] = err
		}
		return errs
	}
	defer b.tasks.Done()
	n := &renewal{b: b, holds: holds, firsts: make([]error, len(holds)), seconds: make([]error, len(holds))}
	n.run(ctx)
	for i, h := range holds {
		errs[i] = n.decide(i, h)
	}
	return errs
}

// renewal is one call of Renew. Each hold has an answer, or two while its member changes.
type renewal struct {
	b               *Backend
	holds           []driver.Hold
	firsts, seconds []error
}

// share is what one member is asked for.
type share struct {
	indices []int
	errs    []*error // where the answers go
	longest time.Duration
}

func (s *share) add(i int, ttl time.Duration, err *error) {
	s.indices, s.errs, s.longest = append(s.indices, i), append(s.errs, err), max(s.longest, ttl)
}

// shares divides the holds among the members.
func (n *renewal) shares() map[*member]*share {
	shares := map[*member]*share{}
	of := func(m *member) *share {
		if shares[m] == nil {
			shares[m] = &share{}
		}
		return shares[m]
	}
	for i, h := range n.holds {
		if n.firsts[i] = validTTL(h.TTL); n.firsts[i] != nil {
			continue
		}
		p := n.b.place(h.Name)
		of(p.first).add(i, h.TTL, &n.firsts[i])
		if p.second != nil {
			of(p.second).add(i, h.TTL, &n.seconds[i])
		}
	}
	return shares
}

func (n *renewal) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	shares := n.shares()
	if len(shares) == 1 {
		for m, s := range shares {
			n.ask(ctx, m, s)
		}
		return
	}
	answered := make(chan struct{}, len(shares))
	for m, s := range shares {
		go func() {
			n.ask(ctx, m, s)
			answered <- struct{}{}
		}()
	}
	patience := time.NewTimer(time.Hour)
	defer patience.Stop()
	patience.Stop()
	for left := len(shares); left > 0; {
		select {
		case <-answered:
			left--
			patience.Reset(n.patience())
		case <-patience.C:
			cancel() // and then they return
		}
	}
}

// patience is how long those are awaited who have not answered when others have.
func (n *renewal) patience() time.Duration {
	shortest := n.holds[0].TTL
	for _, h := range n.holds {
		shortest = min(shortest, h.TTL)
	}
	return min(max(shortest/8, 500*time.Millisecond), time.Second)
}

// ask asks one member for its share.
func (n *renewal) ask(ctx context.Context, m *member, s *share) {
	if err := n.b.roll.cover(ctx, []*member{m}, s.longest); err != nil {
		for _, to := range s.errs {
			*to = fmt.Errorf("shard: renew: %v", err) // which is no fact about the hold
		}
		return
	}
	holds := make([]driver.Hold, len(s.indices))
	for k, i := range s.indices {
		holds[k] = n.holds[i]
		n.b.holds.note(holds[k].Owner, holds[k].Mode, time.Now().Add(holds[k].TTL))
	}
	errs := m.Renew(ctx, holds)
	for k, to := range s.errs {
		err := errNoAnswer
		if k < len(errs) {
			err = errs[k]
		}
		if err != nil {
			*to = m.wrap(err)
		}
	}
}

// decide makes one answer of a hold's. A hold that is lost at one of two members is lost,
// and nobody would release the other half of it.
func (n *renewal) decide(i int, h driver.Hold) error {
	for _, err := range []error{n.firsts[i], n.seconds[i]} {
		if errors.Is(err, driver.ErrLost) {
			n.b.holds.drop(h.Owner)
			n.b.forget(h)
			return err
		}
	}
	if n.firsts[i] != nil {
		return n.firsts[i]
	}
	return n.seconds[i]
}

// forget releases, in the background, what is left of a hold at two members.
func (b *Backend) forget(h driver.Hold) {
	p := b.place(h.Name)
	if p.second == nil {
		return
	}
	b.tasks.Add(1)
	go func() {
		defer b.tasks.Done()
		ctx, cancel := context.WithTimeout(b.life, roundTimeout)
		defer cancel()
		_ = b.release(ctx, p, h) // else it ends with its TTL
	}()
}
