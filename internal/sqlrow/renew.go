package sqlrow

import (
	"context"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
)

// Renew restarts the TTL of holds: of those that exclude all others, as many as may be
// in one statement, and those that share a lock by a change of its row.
func (b *Backend) Renew(ctx context.Context, holds []driver.Hold) []error {
	n := &renewal{b: b, ctx: ctx, holds: holds, answers: make([]error, len(holds))}
	if err := b.open(ctx); err != nil {
		n.answerAll(err)
	} else {
		n.run()
	}
	for i, err := range n.answers {
		n.answers[i] = b.wrap("renew", holds[i].Name, err)
	}
	return n.answers
}

// renewal is one call of Renew. Holds are meant by their index.
type renewal struct {
	b       *Backend
	ctx     context.Context
	holds   []driver.Hold
	answers []error
}

func (n *renewal) answerAll(err error) {
	for i := range n.answers {
		n.answers[i] = err
	}
}

// batch is what can be renewed by one statement.
type batch struct {
	ttl   time.Duration
	floor int64
}

func (n *renewal) run() {
	batches, single := n.sort()
	for what, list := range batches {
		for len(list) > 0 {
			size := min(len(list), MaxExtend)
			single = append(single, n.extend(what, list[:size])...)
			list = list[size:]
		}
	}
	n.renewSingly(single)
}

// sort divides the holds: those that can be renewed by one statement, and those that can't.
func (n *renewal) sort() (batches map[batch][]int, single []int) {
	batches = map[batch][]int{}
	seen := map[string]bool{}
	for i, h := range n.holds {
		if err := claims.CheckRenewal(h); err != nil {
			n.answers[i] = err
			continue
		}
		if !h.Mode.Alone() || seen[h.Name] {
			single = append(single, i)
			continue
		}
		seen[h.Name] = true
		what := batch{wholeMicros(h.TTL), int64(h.Floor >> claims.SpanBits)}
		batches[what] = append(batches[what], i)
	}
	return batches, single
}

// extend renews by one statement, and returns those that need another.
func (n *renewal) extend(what batch, list []int) (left []int) {
	held := make([]Held, len(list))
	for j, i := range list {
		held[j] = Held{KeyOf(n.holds[i].Name), n.holds[i].Owner}
	}
	done, err := n.b.dialect.Extend(n.ctx, held, what.ttl, what.floor)
	if err == nil && done < len(list) {
		left, err = n.sift(list, held)
	}
	if err != nil {
		for _, i := range list {
			n.answers[i] = err
		}
	}
	return left
}

// sift finds out which of the holds that were meant were renewed: those that hold alone
// and live. Of the others it returns those that hold in another mode.
func (n *renewal) sift(list []int, held []Held) (left []int, err error) {
	states, err := n.b.lookAll(n.ctx, held)
	if err != nil {
		return nil, err
	}
	for j, i := range list {
		s, err := states(held[j].Key)
		if err != nil {
			n.answers[i] = err
			continue
		}
		switch c, ok := s.Claim(held[j].Owner); {
		case !ok || !c.Holds():
			n.answers[i] = driver.ErrLost
		case !c.Mode.Alone():
			left = append(left, i)
		}
	}
	return left, nil
}

// parallel is how many rows are changed at once by one call of Renew.
const parallel = 4

// renewSingly looks at the rows of the holds, and changes those that need it.
func (n *renewal) renewSingly(list []int) {
	byName := map[string][]int{}
	for _, i := range list {
		byName[n.holds[i].Name] = append(byName[n.holds[i].Name], i)
	}
	var wg sync.WaitGroup
	slots := make(chan struct{}, parallel)
	for name, of := range byName {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			n.renewOne(name, of)
		})
	}
	wg.Wait()
}

// renewOne renews the holds of one lock.
func (n *renewal) renewOne(name string, list []int) {
	err := n.b.change(n.ctx, name, func(s *state) (v verdict) {
		for _, i := range list {
			changed, err := s.renew(n.holds[i])
			n.answers[i] = err
			v.write = v.write || changed
		}
		return v
	})
	for _, i := range list {
		if err != nil {
			n.answers[i] = err
		}
	}
}

// renew restarts the TTL of a hold.
func (s *state) renew(h driver.Hold) (changed bool, err error) {
	c, ok := s.Claim(h.Owner)
	if !ok || !c.Holds() {
		return false, driver.ErrLost
	}
	c.Until = s.ends(h.TTL)
	s.set(c)
	s.Number = max(s.Number, int64(h.Floor>>claims.SpanBits))
	return true, nil
}
