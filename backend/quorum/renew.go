package quorum

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/distlock/distlock/driver"
)

// Renew asks each member once for all holds, and returns when all are decided: renewed
// by a majority, or lost because no majority is left. A hold that is decided does not
// wait for members that are slow.
//
// A member at which a live hold is missing in two renewals in a row, since it was down
// or lost its memory, is asked for it anew in the background: otherwise a lock that is
// held for days would not outlive its members' restarts, one after the other. Once is
// not enough: somebody may be releasing the hold by force, member by member.
func (b *Backend) Renew(ctx context.Context, holds []driver.Hold) []error {
	errs := make([]error, len(holds))
	if err := b.begin(ctx); err != nil {
		for i := range errs {
			errs[i] = err
		}
		return errs
	}
	defer b.tasks.Done()
	n := &renewal{
		b: b, ctx: ctx, holds: holds, start: time.Now(),
		tallies: make([]tally, len(holds)), errs: errs, open: len(holds),
		heard: make(chan renewed, 2*len(b.members)),
	}
	n.run()
	return errs
}

// renewal is one call of Renew.
type renewal struct {
	b       *Backend
	ctx     context.Context
	holds   []driver.Hold // the caller's: not to be changed, nor used after the end
	start   time.Time
	tallies []tally
	errs    []error
	open    int   // holds without a decision
	calls   []int // by member: without an answer
	heard   chan renewed
}

// renewed is a member's answer to some of the holds.
type renewed struct {
	member  int
	indices []int
	errs    []error
}

func (n *renewal) run() {
	for i, h := range n.holds {
		n.tallies[i].of = len(n.b.members)
		n.errs[i] = errPending
		n.b.holds.renewing(h, n.b.atMembers(h.TTL))
	}
	n.calls = make([]int, len(n.b.members))
	for i := range n.b.members {
		n.send(i)
	}
	for n.open > 0 && n.b.worthWaiting(n.asked) {
		select {
		case h := <-n.heard:
			n.add(h)
			continue
		case <-n.ctx.Done():
		}
		break
	}
	for i, err := range n.errs {
		if err == errPending {
			n.errs[i] = n.doubt(i)
		}
	}
}

var errPending = errors.New("no decision yet")

func (n *renewal) doubt(i int) error {
	t := &n.tallies[i]
	if t.final > t.of-n.b.majority {
		return fmt.Errorf("quorum: renew %s: %w", driver.Quote(n.holds[i].Name), t.finalErr)
	}
	err := t.unknown("renew", n.holds[i].Name)
	if n.ctx.Err() != nil {
		return fmt.Errorf("%w: %w", err, n.ctx.Err())
	}
	return err
}

func (n *renewal) asked(member int) bool { return n.calls[member] > 0 }

// send asks a member for all, those apart whose last call is still under way there.
func (n *renewal) send(member int) {
	m := n.b.members[member]
	var idle, busy []int
	for i, h := range n.holds {
		if m.lane.idle(h.Owner) {
			idle = append(idle, i)
		} else {
			busy = append(busy, i)
		}
	}
	for _, indices := range [][]int{idle, busy} {
		if len(indices) > 0 {
			n.call(member, indices)
			n.calls[member]++
		}
	}
}

// call asks a member for some of the holds.
func (n *renewal) call(member int, indices []int) {
	m, holds := n.b.members[member], make([]driver.Hold, len(indices))
	owners := make([]string, len(indices))
	shortest := n.holds[indices[0]].TTL
	for k, i := range indices {
		h := n.holds[i]
		shortest = min(shortest, h.TTL)
		h.TTL += n.b.drift(h.TTL)
		holds[k], owners[k] = h, h.Owner
	}
	n.b.send(m, renews, owners, func(spared bool) {
		if spared {
			n.heard <- renewed{member, indices, slices.Repeat([]error{errSpared}, len(indices))}
			return
		}
		ctx, cancel := n.b.bound(n.ctx, shortest)
		defer cancel()
		errs := m.Renew(ctx, holds)
		m.noteAll(errs)
		n.heard <- renewed{member, indices, errs}
		for k, err := range errs[:min(len(errs), len(holds))] {
			there := err == nil
			if there || errors.Is(err, driver.ErrLost) {
				if n.b.holds.found(owners[k], member, there) {
					n.b.winBack(n.ctx, member, owners[k])
				}
			}
		}
	})
}

// add enters a member's answers.
func (n *renewal) add(h renewed) {
	n.calls[h.member]--
	for k, i := range h.indices {
		err := errNoAnswer
		if k < len(h.errs) {
			err = h.errs[k]
		}
		n.tallies[i].add(n.b.members[h.member], err)
		if n.errs[i] == errPending {
			n.decide(i)
		}
	}
}

func (n *renewal) decide(i int) {
	t, h := &n.tallies[i], n.holds[i]
	switch {
	case t.yes >= n.b.majority:
		n.errs[i] = nil
		n.b.holds.renewed(h, n.start.Add(h.TTL))
	case t.lost > t.of-n.b.majority:
		n.errs[i] = fmt.Errorf("quorum: %s: %w", driver.Quote(h.Name), driver.ErrLost)
		// Nobody releases what is lost, and the votes that are left keep others out.
		n.b.cleanAll(n.ctx, h, n.b.holds.drop(h.Owner))
	default:
		return
	}
	n.open--
}

// renewOne renews one hold at one member.
func renewOne(ctx context.Context, m *member, h driver.Hold) error {
	errs := m.Renew(ctx, []driver.Hold{h})
	err := errNoAnswer
	if len(errs) == 1 {
		err = errs[0]
	}
	m.note(err)
	return err
}

// winBack asks a member anew for a hold that is missing there and lives elsewhere. Its
// counter is raised as in the second round of Acquire.
func (b *Backend) winBack(values context.Context, member int, owner string) {
	m := b.members[member]
	b.send(m, mends, []string{owner}, func(bool) {
		h, ok := b.holds.wanted(owner)
		if !ok {
			return
		}
		r := h.request
		r.TTL += b.drift(r.TTL)
		r.Fences, r.OnLost = 1, h.news.at(member)
		ctx, cancel := b.bound(values, h.request.TTL)
		defer cancel()
		grant, err := m.Acquire(ctx, r)
		if m.note(err); err != nil {
			return
		}
		h.news.back(member)
		if r.Floor = h.last; grant.Last() < h.last {
			renewOne(ctx, m, r.Hold)
		}
	})
}
