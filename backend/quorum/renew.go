package quorum

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/distlock/distlock/driver"
)

// Renew calls each member once with all holds. It returns when all are decided: renewed by a
// majority, or lost because no majority is left. Slow members do not delay a decision.
//
// If a live hold is missing at a member in two consecutive renewals, because the member was
// down or lost its memory, it is requested there again in the background. Otherwise a lock that
// is held for days would not survive restarts of its members, one after the other. Once is not
// enough: a force unlock may be releasing the hold, member by member. That holds for whatever is
// renewed, also if it was acquired through another connection.
func (b *Backend) Renew(ctx context.Context, holds []driver.Hold) []error {
	if err := b.calls.Begin(ctx); err != nil {
		return slices.Repeat([]error{err}, len(holds))
	}
	defer b.calls.End()
	n := &renewCall{
		b: b, ctx: ctx, holds: holds, start: time.Now(),
		tallies: make([]tally, len(holds)), errs: slices.Repeat([]error{errUndecided}, len(holds)), undecided: len(holds),
		pending: make([]int, len(b.members)), answers: make(chan renewAnswer, 2*len(b.members)),
	}
	n.run()
	return n.errs
}

// renewCall is one call of Renew.
type renewCall struct {
	b         *Backend
	ctx       context.Context
	holds     []driver.Hold // the caller's: not to be changed, nor used after Renew returns
	start     time.Time
	tallies   []tally
	errs      []error
	undecided int
	pending   []int // by member: calls without an answer
	answers   chan renewAnswer
}

// renewAnswer is a member's answer for some of the holds.
type renewAnswer struct {
	member  int
	indices []int
	errs    []error
}

func (n *renewCall) run() {
	for i, h := range n.holds {
		n.tallies[i].of = len(n.b.members)
		n.b.holds.renewing(h, n.b.endAtMembers(h.TTL), len(n.b.members))
	}
	for i := range n.b.members {
		n.send(i)
	}
	for n.undecided > 0 && n.b.worthWaiting(func(member int) bool { return n.pending[member] > 0 }) {
		select {
		case a := <-n.answers:
			n.add(a)
			continue
		case <-n.ctx.Done():
		}
		break
	}
	for i, err := range n.errs {
		if err == errUndecided {
			n.errs[i] = n.undecidedErr(i)
		}
	}
}

var errUndecided = errors.New("no decision yet")

func (n *renewCall) undecidedErr(i int) error {
	err := n.tallies[i].result("renew", n.holds[i].Name, n.b.majority)
	if n.ctx.Err() != nil && !driver.Final(err) {
		return fmt.Errorf("%w: %w", err, n.ctx.Err())
	}
	return err
}

// send calls a member with all holds. Holds whose last call is still running there are in a call
// of their own.
func (n *renewCall) send(member int) {
	m := n.b.members[member]
	var idle, busy []int
	for i, h := range n.holds {
		if m.queue.idle(h.Owner) {
			idle = append(idle, i)
		} else {
			busy = append(busy, i)
		}
	}
	for _, indices := range [][]int{idle, busy} {
		if len(indices) > 0 {
			n.call(member, indices)
			n.pending[member]++
		}
	}
}

// call calls a member with some of the holds.
func (n *renewCall) call(member int, indices []int) {
	m, holds := n.b.members[member], make([]driver.Hold, len(indices))
	owners := make([]string, len(indices))
	shortest := n.holds[indices[0]].TTL
	for k, i := range indices {
		h := n.holds[i]
		shortest = min(shortest, h.TTL)
		h.TTL += n.b.drift(h.TTL)
		holds[k], owners[k] = h, h.Owner
	}
	n.b.send(m, owners, func(c *queuedCall) {
		if m.queue.isReplaced(c) {
			n.answers <- renewAnswer{member, indices, slices.Repeat([]error{errReplaced}, len(indices))}
			return
		}
		ctx, cancel := n.b.callContext(n.ctx, shortest)
		defer cancel()
		errs := m.Renew(ctx, holds)
		m.note(errs...)
		n.answers <- renewAnswer{member, indices, errs}
		for k, err := range errs {
			answered := err == nil || errors.Is(err, driver.ErrLost)
			if answered && n.b.holds.found(owners[k], member, err == nil) {
				n.b.winBack(n.ctx, member, owners[k])
			}
		}
	})
}

// add counts a member's answers.
func (n *renewCall) add(a renewAnswer) {
	n.pending[a.member]--
	for k, i := range a.indices {
		n.tallies[i].add(n.b.members[a.member], a.errs[k])
		if n.errs[i] == errUndecided {
			n.decide(i)
		}
	}
}

func (n *renewCall) decide(i int) {
	t, h := &n.tallies[i], n.holds[i]
	switch {
	case t.yes >= n.b.majority:
		n.errs[i] = nil
		n.b.holds.renewed(h, n.start.Add(h.TTL))
	case t.lost > t.of-n.b.majority:
		n.errs[i] = fmt.Errorf("quorum: %s: %w", driver.Quote(h.Name), driver.ErrLost)
		// The core does not release a lost hold, and its remaining votes keep others out.
		kept := n.b.holds.remove(h.Owner)
		for _, m := range n.b.members {
			n.b.release(n.ctx, m, h, kept, func(error) {})
		}
	default:
		return
	}
	n.undecided--
}

// winBack requests a live hold again from a member where it is missing, and raises the
// member's counter as in the second round of Acquire, if the fences are known here. If they are not, a
// member without its memory starts above them only if it counts from a clock.
func (b *Backend) winBack(values context.Context, member int, owner string) {
	m := b.members[member]
	b.send(m, []string{owner}, func(*queuedCall) {
		h, ok := b.holds.wanted(owner)
		if !ok {
			return
		}
		r := h.request
		r.TTL += b.drift(r.TTL)
		r.Fences, r.OnLost = 1, h.loss.member(member)
		ctx, cancel := b.callContext(values, h.request.TTL)
		defer cancel()
		grant, err := m.Acquire(ctx, r)
		if m.note(err); err != nil {
			return
		}
		h.loss.set(member, false)
		if r.Floor = h.last; grant.Last() < h.last {
			m.renewOne(ctx, r.Hold)
		}
	})
}
