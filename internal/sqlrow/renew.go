package sqlrow

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
	"github.com/distlock/distlock/internal/wait"
)

// Renew makes holds last for their TTL at least. One statement renews many exclusive holds. Shared
// holds are renewed by a change of their row.
func (b *Backend) Renew(ctx context.Context, holds []driver.Hold) []error {
	n := &renewCall{b: b, ctx: ctx, holds: holds, answers: make([]error, len(holds))}
	if err := b.open(ctx); err != nil {
		n.answers = slices.Repeat([]error{err}, len(holds))
	} else {
		n.run()
		for i, err := range n.answers {
			if n.holds[i].ValidateRenewal() == nil {
				n.answers[i] = notFinal(err)
			}
		}
	}
	for i, err := range n.answers {
		n.answers[i] = b.wrap("renew", holds[i].Name, err)
	}
	return n.answers
}

// renewCall is one call of Renew. It refers to holds by their index.
type renewCall struct {
	b       *Backend
	ctx     context.Context
	holds   []driver.Hold
	answers []error
}

func (n *renewCall) answerThese(list []int, err error) {
	for _, i := range list {
		n.answers[i] = err
	}
}

func (n *renewCall) run() {
	batches, single := n.split()
	for what, list := range batches {
		for part := range slices.Chunk(list, MaxExtend) {
			single = append(single, n.extend(what, part)...)
		}
	}
	n.renewSingly(single)
}

// split separates the holds that one statement can renew from those that need a change of their row.
func (n *renewCall) split() (batches map[Extension][]int, single []int) {
	batches = map[Extension][]int{}
	seen := map[string]bool{}
	for i, h := range n.holds {
		if err := h.ValidateRenewal(); err != nil {
			n.answers[i] = err
			continue
		}
		if !h.Mode.Alone() || seen[h.Name] {
			single = append(single, i)
			continue
		}
		seen[h.Name] = true
		what := Extension{TTL: wholeMicros(h.TTL), Floor: int64(h.Floor >> claims.SpanBits)}
		batches[what] = append(batches[what], i)
	}
	return batches, single
}

// maxLocked is how often a renewal finds a row locked before it gives up. Statements of other
// processes are over by then; a transaction that stays open may not be.
const maxLocked = 6

// errLocked means that a hold lasts but was not renewed. The outcome is unknown.
var errLocked = errors.New("the lock's row is locked by a transaction of another program")

// extend renews holds by one statement, and returns those that need a change of their row. Holds
// whose rows are locked are retried, and do not delay the others.
func (n *renewCall) extend(what Extension, list []int) (left []int) {
	for miss := range maxLocked {
		err := pause(n.ctx, miss)
		if err == nil {
			var other []int
			other, list, err = n.extendOnce(what, list)
			left = append(left, other...)
		}
		if err != nil {
			n.answerThese(list, err)
			return left
		}
		if len(list) == 0 {
			return left
		}
	}
	other, list, err := n.extendWaiting(what, list)
	n.answerThese(list, err)
	return append(left, other...)
}

// extendWaiting waits for a locked row if the call has no other holds. Without it, a renewal would
// fail where many processes change a row all the time and take long to commit.
func (n *renewCall) extendWaiting(what Extension, list []int) (left, locked []int, err error) {
	if len(n.holds) > 1 {
		return nil, list, errLocked
	}
	select {
	case n.b.rowWaits <- struct{}{}:
		defer func() { <-n.b.rowWaits }()
	default:
		return nil, list, errLocked
	}
	what.Wait = true
	left, locked, err = n.extendOnce(what, list)
	if err == nil {
		err = errLocked // of what is left
	}
	return left, locked, err
}

// extendOnce sets the results that are known. The holds left have another mode, or rows that were not answered; the
// rows of locked are locked.
func (n *renewCall) extendOnce(what Extension, list []int) (left, locked []int, err error) {
	held := make([]HoldKey, len(list))
	for j, i := range list {
		held[j] = HoldKey{n.holds[i].Name, n.holds[i].Owner}
	}
	done, until, err := n.b.dialect.Extend(n.ctx, held, what)
	if err != nil {
		return nil, list, err
	}
	if done == len(list) {
		return nil, nil, nil
	}
	if until == 0 {
		until = math.MaxInt64
	}
	return n.findUnrenewed(what, list, until)
}

// findUnrenewed reads the rows to find the holds that were not renewed: those that end before until,
// or lack another term of the renewal. A hold whose row was not answered is left, and its row is read by itself.
func (n *renewCall) findUnrenewed(what Extension, list []int, until int64) (left, locked []int, err error) {
	names := make([]string, len(list))
	for j, i := range list {
		names[j] = n.holds[i].Name
	}
	states, err := n.b.readRows(n.ctx, names)
	if err != nil {
		return nil, list, err
	}
	for _, i := range list {
		s, err := states(n.holds[i].Name)
		if err != nil {
			n.answers[i] = err
			continue
		}
		if s == nil {
			left = append(left, i)
			continue
		}
		switch c := s.Hold(n.holds[i].Owner); {
		case c == nil:
			n.answers[i] = driver.ErrLost
		case !c.Mode.Alone():
			left = append(left, i)
		case c.Until/micro < until || s.Number < what.Floor:
			locked = append(locked, i)
		}
	}
	return left, locked, nil
}

// parallel is how many rows one call of Renew changes at the same time.
const parallel = 4

// renewSingly changes the rows of holds, each row by itself.
func (n *renewCall) renewSingly(list []int) {
	byName := map[string][]int{}
	for _, i := range list {
		byName[n.holds[i].Name] = append(byName[n.holds[i].Name], i)
	}
	var wg wait.Group
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
func (n *renewCall) renewOne(name string, list []int) {
	longest := slices.MaxFunc(list, func(i, j int) int { return cmp.Compare(n.holds[i].TTL, n.holds[j].TTL) })
	address := n.b.notifier.Address(n.holds[longest].TTL)
	err := n.b.change(n.ctx, name, func(s *state) (v decision) {
		for _, i := range list {
			changed, err := s.renew(n.holds[i], address)
			n.answers[i] = err
			v.write = v.write || changed
		}
		return v
	})
	if err != nil {
		n.answerThese(list, err)
	}
}

// renew makes a hold last for its TTL at least, with a new address if there is one.
func (s *state) renew(h driver.Hold, address string) (changed bool, err error) {
	c := s.Hold(h.Owner)
	if c == nil {
		return false, driver.ErrLost
	}
	c.Until, c.Address = max(s.ends(h.TTL), c.Until), cmp.Or(address, c.Address)
	s.Number = max(s.Number, int64(h.Floor>>claims.SpanBits))
	return true, nil
}
