package engine

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
	"github.com/distlock/distlock/internal/wait"
)

// parallel is how many batches of one call are under way at once.
const parallel = 2

// Renew makes holds last for their TTL at least. Each changes its own line only, and many do so together.
func (b *Backend) Renew(ctx context.Context, holds []driver.Hold) []error {
	n := &renewals{b: b, ctx: ctx, holds: holds, answers: make([]error, len(holds))}
	list := make([]int, 0, len(holds))
	for i, h := range holds {
		if n.answers[i] = b.usable(ctx); n.answers[i] == nil {
			n.answers[i] = h.ValidateRenewal()
		}
		if n.answers[i] == nil {
			list = append(list, i)
		}
	}
	for len(list) > 0 { // one hold of each name
		now, later := n.split(list)
		var parts wait.Group
		slots := make(chan struct{}, parallel) // the store works on one part while another is made
		for part := range slices.Chunk(now, maxBatch) {
			slots <- struct{}{}
			parts.Go(func() {
				n.renew(part)
				<-slots
			})
		}
		parts.Wait()
		list = later
	}
	for i, err := range n.answers {
		n.answers[i] = b.wrap("renew", holds[i].Name, err)
	}
	return n.answers
}

// renewals is one call of Renew. It refers to holds by their index.
type renewals struct {
	b       *Backend
	ctx     context.Context
	holds   []driver.Hold
	answers []error
}

// split returns one hold of each name, and the others.
func (n *renewals) split(list []int) (now, later []int) {
	seen := make(map[string]bool, len(list))
	for _, i := range list {
		if name := n.holds[i].Name; seen[name] {
			later = append(later, i)
		} else {
			seen[name] = true
			now = append(now, i)
		}
	}
	return now, later
}

func (n *renewals) answer(list []int, err error) {
	for _, i := range list {
		n.answers[i] = notFinal(err)
	}
}

// maxSkipped is how often a renewal beside others finds its text locked before it gives up. Changes of other processes are over
// by then; a transaction that stays open may not be.
const maxSkipped = 6

var errLocked = errors.New("another program's transaction keeps the lock's text locked: nothing was done")

// renew renews holds of different names. Those that were not renewed, though their line is there, are tried again.
func (n *renewals) renew(list []int) {
	mine := map[int]own{}
	for _, i := range list {
		mine[i] = n.b.memory.of(n.holds[i].Owner)
	}
	for misses := 0; len(list) > 0; misses++ {
		err := pause(n.ctx, misses)
		if misses > maxSkipped {
			err = errLocked
		}
		if err == nil {
			list, err = n.find(list, mine)
		}
		if err != nil || len(list) == 0 {
			n.answer(list, err)
			return
		}
		list = n.swap(list, mine)
	}
}

// find reads the locks of holds that are not known, and returns the holds that last.
func (n *renewals) find(list []int, mine map[int]own) (found []int, err error) {
	var names []string
	var unknown []int
	for _, i := range list {
		if c := mine[i].claim; !c.Holds() {
			names, unknown = append(names, n.holds[i].Name), append(unknown, i)
		}
	}
	if len(names) == 0 && n.b.memory.upper() > 0 {
		return list, nil
	}
	if len(names) == 0 { // for the clock
		_, err := n.b.readAll(n.ctx, []string{n.holds[list[0]].Name})
		return list, err
	}
	all, err := n.b.readAll(n.ctx, names)
	if err != nil {
		return list, err
	}
	for j, i := range unknown {
		n.saw(i, all[j], mine)
	}
	return slices.DeleteFunc(list, func(i int) bool { return n.answers[i] != nil }), nil
}

// saw finds a hold in the text of its lock.
func (n *renewals) saw(i int, seen Seen, mine map[int]own) {
	l, err := see(seen)
	if err != nil {
		n.answers[i] = notFinal(err)
		return
	}
	c := l.Hold(n.holds[i].Owner)
	if c == nil {
		n.answers[i] = driver.ErrLost
		n.b.memory.keep(n.holds[i].Owner, l, nil)
		return
	}
	mine[i] = own{claim: *c, limit: l.Limit}
}

// change returns what renews a hold, and the hold after that.
func (n *renewals) change(i int, o own) (c Change, after own) {
	h := &n.holds[i]
	after = o
	after.claim.Until = max(o.claim.Until, n.b.memory.upper()*micro+int64(wholeMicros(h.TTL)))
	c = Change{
		Name: h.Name, Version: n.b.memory.version(h.Name), Ahead: Anything, Old: string(head(&o.claim)) + " ", New: string(head(&after.claim)) + " ", Until: after.claim.Until / micro,
		Before: o.claim.Until / micro, Floor: int64(h.Floor >> claims.SpanBits), Skip: len(n.holds) > 1,
	}
	if at := n.b.follow(h.TTL); at != o.claim.Address && at != "" {
		after.claim.Address = at
		l, was, is := lock{Lock: claims.Lock{Limit: o.limit}}, o.claim, after.claim
		was.Meta, is.Meta = "", "" // a line ends with that
		c.Old, c.New = l.line(&was), l.line(&is)
	}
	return c, after
}

// swap renews holds, and returns those that are to be tried again.
func (n *renewals) swap(list []int, mine map[int]own) (again []int) {
	changes, after := make([]Change, len(list)), make([]own, len(list))
	for j, i := range list {
		changes[j], after[j] = n.change(i, mine[i])
	}
	asked := time.Now()
	for j, out := range n.b.store.Swap(n.ctx, changes) {
		i := list[j]
		if n.done(i, &changes[j], asked, out, after[j], mine) {
			again = append(again, i)
		}
	}
	return again
}

// done takes note of the answer to a renewal, and reports whether it is to be tried again.
func (n *renewals) done(i int, c *Change, asked time.Time, out Outcome, after own, mine map[int]own) (again bool) {
	h := &n.holds[i]
	jumped := n.b.memory.told(out.Seen.Now, asked)
	switch {
	case out.Err != nil:
		n.answers[i] = notFinal(out.Err)
		n.b.memory.lost(h.Owner, 0, h.TTL)
		return false
	case !out.Done:
		n.saw(i, out.Seen, mine)
		return n.answers[i] == nil
	}
	mine[i] = after
	n.b.memory.renewed(h.Name, c.Version, out, after)
	return jumped // then it is shorter than its TTL
}
