package quorum

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
)

// Acquire makes one attempt in two rounds. It first requests the votes of all members at once,
// until a majority has granted or none is possible. Then the members that granted raise their fence
// counters to the last fence of the grant, again until a majority has. Anything that a failed
// attempt may have left at a member is released there in the background.
func (b *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := b.calls.Begin(ctx); err != nil {
		return driver.Grant{}, err
	}
	defer b.calls.End()
	if err := b.validate(&r); err != nil {
		return driver.Grant{}, err
	}
	bt := &ballot{
		b: b, ctx: ctx, r: r, known: b.holds.acquiring(r.Owner), start: time.Now(),
		votes:   make(votes, len(b.members)),
		answers: make(chan memberVote, 2*len(b.members)),
		loss:    newLossSignal(len(b.members), b.majority, r.OnLost),
	}
	return bt.run()
}

func (b *Backend) validate(r *driver.Request) error {
	if r.Queue {
		return fmt.Errorf("%w: quorum: a queue: it could have another order at each member", driver.ErrUnsupported)
	}
	if err := checkMode(r.Mode); err != nil {
		return err
	}
	if err := r.Validate(b.caps); err != nil {
		return fmt.Errorf("quorum: %w", err)
	}
	return nil
}

// ballot is one attempt to get the votes of a majority.
type ballot struct {
	b     *Backend
	ctx   context.Context
	r     driver.Request
	known bool // the Owner may have held before
	start time.Time
	loss  *lossSignal

	votes   votes
	answers chan memberVote // has room for all answers, so that late ones don't block
	over    atomic.Bool
	pauses  int              // after split votes, so far
	paused  time.Duration    // in all
	again   <-chan time.Time // ends a pause; nil if there is none

	first, last uint64 // the fences of the grant, once a majority has granted
}

type memberVote struct {
	member int
	vote
}

func (bt *ballot) run() (driver.Grant, error) {
	for i := range bt.votes {
		bt.ask(i)
	}
	for {
		if bt.again == nil {
			if grant, err, done := bt.count(); done {
				return bt.close(grant, err)
			}
		}
		select {
		case a := <-bt.answers:
			bt.votes[a.member] = a.vote
			bt.raise(a.member)
		case <-bt.again:
			bt.askAgain()
		case <-bt.ctx.Done():
			return bt.close(driver.Grant{}, bt.unknown(bt.ctx.Err()))
		}
	}
}

// ask requests a member's vote.
func (bt *ballot) ask(i int) {
	bt.votes[i] = vote{state: asked}
	m, r := bt.b.members[i], bt.r
	r.TTL += bt.b.drift(r.TTL)
	r.OnLost = bt.loss.member(i)
	bt.b.send(m, []string{r.Owner}, func(*queuedCall) {
		m.releases.told(r.Owner)
		if bt.over.Load() {
			return // it has failed before this call's turn
		}
		m.releases.remove(r.Owner)
		ctx, cancel := bt.b.callContext(bt.ctx, bt.r.TTL)
		defer cancel()
		grant, err := m.Acquire(ctx, r)
		m.note(err)
		bt.answers <- memberVote{i, vote{stateOf(err, granted), grant, time.Now(), err}}
	})
}

// askAgain requests the votes of the members that have refused.
func (bt *ballot) askAgain() {
	bt.again = nil
	for i, v := range bt.votes {
		if heldBy(v.err) != nil && !v.spent() {
			bt.ask(i)
		}
	}
}

// freshVote is how long a vote is taken for valid without being confirmed. A member that forgets it may
// give it to a successor, whose grant would be older than this one.
const freshVote = 20 * time.Millisecond

// raise makes a member that granted raise its counter above the grant's fences, once they
// are known, unless it is above them anyway and the vote is fresh. Only the owner can do so: a late request
// can't raise the counter for another Owner's lock.
func (bt *ballot) raise(i int) {
	v := &bt.votes[i]
	if v.state != granted || bt.last == 0 {
		return
	}
	if (v.grant.Last() >= bt.last || !bt.b.caps.Fence) && time.Since(v.since) < freshVote {
		v.state = raised
		return
	}
	grant, m := v.grant, bt.b.members[i]
	h := bt.r.Hold
	h.TTL += bt.b.drift(h.TTL)
	if v.state = asked; bt.b.caps.Fence {
		h.Floor = bt.last
	}
	bt.b.send(m, []string{h.Owner}, func(*queuedCall) {
		if bt.over.Load() {
			return
		}
		ctx, cancel := bt.b.callContext(bt.ctx, bt.r.TTL)
		defer cancel()
		err := m.renewOne(ctx, h)
		switch {
		case errors.Is(err, driver.ErrLost):
			err = fmt.Errorf("it was granted, and then lost (%v)", err)
		case errors.Is(err, driver.ErrUnsent):
			err = fmt.Errorf("it was granted, and its fence was not raised (%v)", err)
		}
		bt.answers <- memberVote{i, vote{stateOf(err, raised), grant, time.Now(), err}}
	})
}

// count decides the ballot, if the votes suffice for that.
func (bt *ballot) count() (driver.Grant, error, bool) {
	t := bt.votes.tally(bt.b.members)
	q := bt.b.majority
	switch {
	case bt.last == 0 && t.yes >= q:
		bt.chooseFences()
		return bt.count()
	case bt.last > 0 && bt.votes.count(raised) >= q:
		return bt.won()
	case t.final > t.of-q:
		return driver.Grant{}, fmt.Errorf("quorum: acquire %s: %w", driver.Quote(bt.r.Name), t.finalErr), true
	case t.held+t.final > t.of-q && bt.last == 0:
		return bt.refused(t)
	case bt.b.worthWaiting(bt.votes.asked):
		return driver.Grant{}, nil, false
	case bt.known || bt.last > 0 || t.held == 0 || t.yes+t.held+t.final < q:
		return driver.Grant{}, bt.unknown(nil), true
	}
	// Some members are silent, and neither side has a majority of the others.
	return bt.refused(t)
}

// maxSpan is the maximum of fences of a grant: each grant uses up so many at every member.
const maxSpan = 1 << 20

// chooseFences chooses the fences once a majority has granted: not below any that a member has
// granted, and so above the fences of the previous holder, which had raised one of these members.
func (bt *ballot) chooseFences() {
	for _, v := range bt.votes {
		if v.state == granted {
			bt.first = max(bt.first, v.grant.Fence)
		}
	}
	bt.last = max(bt.first+min(max(bt.r.Fences, 1), maxSpan)-1, 1)
	for i := range bt.votes {
		bt.raise(i)
	}
}

// won returns the grant. Its TTL is at most the requested one, and less the drift where a member
// granted less.
func (bt *ballot) won() (driver.Grant, error, bool) {
	ttl := time.Duration(0)
	for _, v := range bt.votes {
		if d := v.grant.TTL; (v.state == granted || v.state == raised) && (ttl == 0 || d < ttl) {
			ttl = d
		}
	}
	ttl = min(ttl-bt.b.drift(bt.r.TTL), bt.r.TTL)
	if time.Since(bt.start) >= ttl {
		return driver.Grant{}, bt.unknown(errLate), true
	}
	if !bt.b.caps.Fence {
		return driver.Grant{Fences: 1, TTL: ttl}, nil, true
	}
	return driver.Grant{Fence: bt.first, Fences: bt.last - bt.first + 1, TTL: ttl}, nil, true
}

var errLate = errors.New("the majority came after the end of the TTL")

// A favourite of a split vote pauses for firstPause before it asks again, doubled each time
// up to longestPause: the others need the time to release their votes. The pauses take at
// most a quarter of a member's timeout.
const (
	firstPause   = 200 * time.Microsecond
	longestPause = 10 * time.Millisecond
)

// refused decides a ballot without a majority because of rivals.
//
// Concurrent attempts can split the vote, so that none has a majority. If all of them gave up
// and came again, they might do so forever. So a favourite keeps its votes and asks again
// for the rest, which the others release. Each attempt asks again at least once, as there may
// be votes of a holder that is just releasing.
func (bt *ballot) refused(t *tally) (driver.Grant, error, bool) {
	top := bt.votes.strongest()
	if top < bt.b.majority && !bt.known {
		if bt.b.worthWaiting(bt.votes.asked) {
			return driver.Grant{}, nil, false // another vote may make it the favourite
		}
		patient := bt.paused < bt.b.timeout(bt.r.TTL)/4
		if t.yes > 0 && patient && (bt.pauses == 0 || bt.votes.favoured(t.yes, top, bt.pause(bt.pauses-1) == longestPause)) {
			pause := bt.pause(bt.pauses)
			bt.pauses++
			bt.paused += pause
			bt.again = time.After(pause)
			return driver.Grant{}, nil, false
		}
	}
	held := &driver.HeldError{Holders: bt.votes.blockers(), Retry: bt.votes.retry(bt.b.majority)}
	if top < bt.b.majority && bt.votes.count(granted) > 0 {
		// After such a time the vote is unlikely to be split again.
		held.Retry = 20*time.Millisecond + rand.N(80*time.Millisecond)
	}
	return driver.Grant{}, held, true
}

func (bt *ballot) pause(n int) time.Duration { return wait.Backoff(n, firstPause, longestPause) }

// unknown returns the error for an unknown outcome; reason may be nil.
func (bt *ballot) unknown(reason error) error {
	err := bt.votes.tally(bt.b.members).unknownErr("acquire", bt.r.Name)
	if reason == nil {
		return err
	}
	return fmt.Errorf("%w: %w", err, reason)
}

// close ends the ballot. Unless it won, the votes that it may have are released.
func (bt *ballot) close(grant driver.Grant, err error) (driver.Grant, error) {
	if err == nil {
		r := bt.r
		bt.b.holds.granted(r, bt.last, bt.start.Add(r.TTL), bt.b.endAtMembers(r.TTL), len(bt.votes), bt.loss)
		return grant, nil
	}
	if bt.known && !errors.Is(err, driver.ErrHeld) {
		// It may still hold, by the votes that it has.
		bt.b.holds.undecided(bt.r.Owner, driver.Final(err))
		return driver.Grant{}, err
	}
	bt.over.Store(true)
	some := slices.ContainsFunc(bt.votes, func(v vote) bool { return v.spent() })
	if bt.releaseVotes(bt.b.holds.remove(bt.r.Owner)) || some {
		err = driver.Spent(err)
	}
	return driver.Grant{}, err
}

// releaseVotes releases the votes that the attempt may have. It waits a moment for the members
// that had granted, so that a refused attempt normally leaves nothing behind. Members may
// keep earlier votes until kept. It reports whether there was anything to release.
func (bt *ballot) releaseVotes(kept time.Time) (some bool) {
	p := bt.b.newPoll()
	for i, v := range bt.votes {
		p.pending[i] = v.state == granted
		if !v.untaken() || bt.known {
			some = true
			bt.b.release(bt.ctx, bt.b.members[i], bt.r.Hold, kept, func(err error) { p.answers <- answer{i, err} })
		}
	}
	late := time.After(bt.b.linger(bt.start, bt.r.TTL))
	for p.next(bt.ctx, late) {
	}
	return some
}
