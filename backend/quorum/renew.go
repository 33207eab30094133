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

func (r *renewCall) run() {
	for i, h := range r.holds {
		r.tallies[i].of = len(r.b.members)
		r.b.holds.renewing(h, r.b.endAtMembers(h.TTL), len(r.b.members))
	}
	for i := range r.b.members {
		r.send(i)
	}
	for r.undecided > 0 && r.b.worthWaiting(func(member int) bool { return r.pending[member] > 0 }) {
		select {
		case a := <-r.answers:
			r.add(a)
			continue
		case <-r.ctx.Done():
		}
		break
	}
	for i, err := range r.errs {
		if err == errUndecided {
			r.errs[i] = r.undecidedErr(i)
		}
	}
}

var errUndecided = errors.New("no decision yet")

func (r *renewCall) undecidedErr(i int) error {
	err := r.tallies[i].result("renew", r.holds[i].Name, r.b.majority)
	if r.ctx.Err() != nil && !driver.Final(err) {
		return fmt.Errorf("%w: %w", err, r.ctx.Err())
	}
	return err
}

// send calls a member with all holds. Holds whose last call is still running there are in a call
// of their own.
func (r *renewCall) send(member int) {
	m := r.b.members[member]
	var idle, busy []int
	for i, h := range r.holds {
		if m.queue.idle(h.Owner) {
			idle = append(idle, i)
		} else {
			busy = append(busy, i)
		}
	}
	for _, indices := range [][]int{idle, busy} {
		if len(indices) > 0 {
			r.call(member, indices)
			r.pending[member]++
		}
	}
}

// call calls a member with some of the holds.
func (r *renewCall) call(member int, indices []int) {
	m, holds := r.b.members[member], make([]driver.Hold, len(indices))
	owners := make([]string, len(indices))
	shortest := r.holds[indices[0]].TTL
	for k, i := range indices {
		h := r.holds[i]
		shortest = min(shortest, h.TTL)
		h.TTL += r.b.drift(h.TTL)
		holds[k], owners[k] = h, h.Owner
	}
	r.b.send(m, owners, func(c *queuedCall) {
		if m.queue.isReplaced(c) {
			r.answers <- renewAnswer{member, indices, slices.Repeat([]error{errReplaced}, len(indices))}
			return
		}
		ctx, cancel := r.b.callContext(r.ctx, shortest)
		defer cancel()
		errs := m.Renew(ctx, holds)
		m.note(errs...)
		r.answers <- renewAnswer{member, indices, errs}
		for k, err := range errs {
			answered := err == nil || errors.Is(err, driver.ErrLost)
			if answered && r.b.holds.found(owners[k], member, err == nil) {
				r.b.winBack(r.ctx, member, owners[k])
			}
		}
	})
}

// add counts a member's answers.
func (r *renewCall) add(a renewAnswer) {
	r.pending[a.member]--
	for k, i := range a.indices {
		r.tallies[i].add(r.b.members[a.member], a.errs[k])
		if r.errs[i] == errUndecided {
			r.decide(i)
		}
	}
}

func (r *renewCall) decide(i int) {
	t, h := &r.tallies[i], r.holds[i]
	switch {
	case t.yes >= r.b.majority:
		r.errs[i] = nil
		r.b.holds.renewed(h, r.start.Add(h.TTL))
	case t.lost > t.of-r.b.majority:
		r.errs[i] = fmt.Errorf("quorum: %s: %w", driver.Quote(h.Name), driver.ErrLost)
		// The core does not release a lost hold, and its remaining votes keep others out.
		kept := r.b.holds.remove(h.Owner)
		for _, m := range r.b.members {
			r.b.release(r.ctx, m, h, kept, func(error) {})
		}
	default:
		return
	}
	r.undecided--
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
