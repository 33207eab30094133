package sqlrow

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
	"github.com/distlock/distlock/internal/wait"
)

// Renew makes holds last for their TTL at least. One statement renews many exclusive holds. Shared
// holds are renewed by a change of their row, or each by its text where that changes all the time.
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

func (r *renewCall) answerThese(list []int, err error) {
	for _, i := range list {
		r.answers[i] = err
	}
}

func (r *renewCall) run() {
	batches, single := r.split()
	for what, list := range batches {
		for part := range slices.Chunk(list, MaxExtend) {
			single = append(single, r.extend(what, part)...)
		}
	}
	r.renewSingly(single)
}

// split separates the holds that one statement can renew from those that need a change of their row.
func (r *renewCall) split() (batches map[Extension][]int, single []int) {
	batches = map[Extension][]int{}
	seen := map[string]bool{}
	for i, h := range r.holds {
		if err := h.ValidateRenewal(); err != nil {
			r.answers[i] = err
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
func (r *renewCall) extend(what Extension, list []int) (left []int) {
	for miss := range maxLocked {
		err := pause(r.ctx, miss)
		if err == nil {
			var other []int
			other, list, err = r.extendOnce(what, list)
			left = append(left, other...)
		}
		if err != nil {
			r.answerThese(list, err)
			return left
		}
		if len(list) == 0 {
			return left
		}
	}
	other, list, err := r.extendWaiting(what, list)
	r.answerThese(list, err)
	return append(left, other...)
}

// extendWaiting waits for a locked row if the call has no other holds. Without it, a renewal would
// fail where many processes change a row all the time and take long to commit.
func (r *renewCall) extendWaiting(what Extension, list []int) (left, locked []int, err error) {
	if len(r.holds) > 1 {
		return nil, list, errLocked
	}
	select {
	case r.b.rowWaits <- struct{}{}:
		defer func() { <-r.b.rowWaits }()
	default:
		return nil, list, errLocked
	}
	what.Wait = true
	left, locked, err = r.extendOnce(what, list)
	if err == nil {
		err = errLocked // of what is left
	}
	return left, locked, err
}

// extendOnce sets the results that are known. The holds left have another mode, or rows that were not answered; the
// rows of locked are locked.
func (r *renewCall) extendOnce(what Extension, list []int) (left, locked []int, err error) {
	held := make([]HoldKey, len(list))
	for j, i := range list {
		held[j] = HoldKey{r.holds[i].Name, r.holds[i].Owner}
	}
	done, until, err := r.b.dialect.Extend(r.ctx, held, what)
	if err != nil {
		return nil, list, err
	}
	if done == len(list) {
		return nil, nil, nil
	}
	if until == 0 {
		until = math.MaxInt64
	}
	return r.findUnrenewed(what, list, until)
}

// findUnrenewed reads the rows to find the holds that were not renewed: those that end before until,
// or lack another term of the renewal. A hold whose row was not answered is left, and its row is read by itself.
func (r *renewCall) findUnrenewed(what Extension, list []int, until int64) (left, locked []int, err error) {
	names := make([]string, len(list))
	for j, i := range list {
		names[j] = r.holds[i].Name
	}
	states, err := r.b.readRows(r.ctx, names)
	if err != nil {
		return nil, list, err
	}
	for _, i := range list {
		s, err := states(r.holds[i].Name)
		if err != nil {
			r.answers[i] = err
			continue
		}
		if s == nil {
			left = append(left, i)
			continue
		}
		switch c := s.Hold(r.holds[i].Owner); {
		case c == nil:
			r.answers[i] = driver.ErrLost
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
func (r *renewCall) renewSingly(list []int) {
	byName := map[string][]int{}
	for _, i := range list {
		byName[r.holds[i].Name] = append(byName[r.holds[i].Name], i)
	}
	var wg wait.Group
	slots := make(chan struct{}, parallel)
	for name, of := range byName {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			r.renewOne(name, of)
		})
	}
	wg.Wait()
}

// renewOne renews the holds of one lock.
func (r *renewCall) renewOne(name string, list []int) {
	longest := slices.MaxFunc(list, func(i, j int) int { return cmp.Compare(r.holds[i].TTL, r.holds[j].TTL) })
	address := r.b.notifier.Address(r.holds[longest].TTL)
	var first, last int64 // the row's rev
	err := r.b.change(r.ctx, name, func(s *state) (v decision) {
		last = s.row.Rev
		first = cmp.Or(first, last)
		for _, i := range list {
			changed, err := s.renew(r.holds[i], address)
			r.answers[i] = err
			v.write = v.write || changed
		}
		return v
	})
	if err != nil {
		r.answerThese(list, err)
	}
	// A row that does not change is locked, perhaps for long, and must not delay other holds.
	if errors.Is(err, errBusy) && (first != last || len(r.holds) == 1) {
		for _, i := range list {
			r.answers[i] = r.renewClaim(r.holds[i], address)
		}
	}
}

// renewClaim renews one shared hold, whatever else of its row others change all the time. It waits for the row.
func (r *renewCall) renewClaim(h driver.Hold, address string) error {
	select {
	case r.b.rowWaits <- struct{}{}:
		defer func() { <-r.b.rowWaits }()
	default:
		return errBusy
	}
	asked := time.Now()
	s, err := r.b.readRow(r.ctx, h.Name)
	if err != nil {
		return err
	}
	c := s.Hold(h.Owner)
	if c == nil {
		return driver.ErrLost
	}
	s.leeway = minLeeway + 2*time.Since(asked)
	before := recordOf(*c)
	_, _ = s.renew(h, address)
	done, err := r.b.rewrite(r.ctx, s, before, recordOf(*c))
	if err == nil && !done {
		err = errBusy
	}
	return err
}

// rewrite writes a shared hold of s anew, and nothing else. done is false if the hold has changed since s was read.
func (b *Backend) rewrite(ctx context.Context, s *state, before, after claimRecord) (done bool, err error) {
	old, err := json.Marshal(before)
	if err != nil {
		return false, err
	}
	text, err := json.Marshal(after)
	if err != nil {
		return false, err
	}
	return b.dialect.Rewrite(ctx, Rewriting{
		Key: s.row.Key, Old: old, New: text, Until: after.Until, Number: s.Number,
		Earliest: s.now / micro, Latest: min((s.now+int64(s.leeway))/micro, before.Until-1),
	})
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
