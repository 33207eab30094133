package quorum

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/driver"
)

// Acquire makes one attempt, of two rounds. First all members are asked at once, until
// a majority has granted or none can be had. Then those that granted raise their fence
// counters to the last fence of the grant, again until a majority has. What a failed
// attempt may have left at a member is released there in the background.
func (b *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := b.begin(ctx); err != nil {
		return driver.Grant{}, err
	}
	defer b.tasks.Done()
	if err := b.valid(&r); err != nil {
		return driver.Grant{}, err
	}
	known, mode := b.holds.ask(r.Owner)
	if known && mode == driver.Write && r.Mode == driver.Read && !b.caps.Downgrade {
		b.holds.undecided(r.Owner, true)
		return driver.Grant{}, fmt.Errorf("%w: quorum: a member can't downgrade", driver.ErrUnsupported)
	}
	v := &ballot{
		b: b, ctx: ctx, r: r, known: known, start: time.Now(),
		votes: make([]vote, len(b.members)),
		heard: make(chan heard, 2*len(b.members)),
		news:  newNews(len(b.members), b.majority, r.OnLost),
	}
	return v.run()
}

func (b *Backend) valid(r *driver.Request) error {
	switch {
	case r.Queue:
		return fmt.Errorf("%w: quorum: a place in line: waiters could stand in another order at each member", driver.ErrUnsupported)
	case r.TTL <= 0:
		return fmt.Errorf("%w: quorum: TTL %v is not positive", driver.ErrInvalid, r.TTL)
	}
	return b.canHold(r.Mode)
}

// canHold refuses modes that a majority can't keep.
func (b *Backend) canHold(m driver.Mode) error {
	switch {
	case m == driver.Counted:
		return fmt.Errorf("%w: quorum: semaphores: of 2 permits, 3 users could each win 2 of 3 members", driver.ErrUnsupported)
	case !b.caps.Modes.Has(m):
		return fmt.Errorf("%w: quorum: mode %v: not every member has it", driver.ErrUnsupported, m)
	}
	return nil
}

// ballot is one attempt to be granted by a majority.
type ballot struct {
	b     *Backend
	ctx   context.Context
	r     driver.Request
	known bool // the Owner may have held before
	start time.Time
	news  *news

	votes  []vote
	heard  chan heard // has room for all that are under way: who answers late finds nobody
	over   atomic.Bool
	rest   time.Duration    // before those who had refused were asked again
	rested time.Duration    // in all
	again  <-chan time.Time // when they are asked again; nil if they aren't

	first, last uint64 // the fences of the grant, once a majority has granted
}

// vote is what a member has said so far.
type vote struct {
	state state
	grant driver.Grant
	err   error
}

type state uint8

const (
	asked   state = iota // no answer yet
	granted              // and its counter may be below the grant's last fence
	raised               // granted, and later grants' fences are above the last
	denied               // somebody else holds, or the request can never succeed
	silent               // nobody knows
)

// untaken reports whether the attempt has left nothing at the member.
func (vt *vote) untaken() bool {
	return vt.grant.Fences == 0 && (vt.state == denied || vt.state == silent && errors.Is(vt.err, driver.ErrUnsent))
}

// heard is an answer on its way.
type heard struct {
	member int
	vote
}

func (v *ballot) run() (driver.Grant, error) {
	for i := range v.votes {
		v.ask(i)
	}
	for {
		if v.again == nil {
			if grant, err, done := v.count(); done {
				return v.close(grant, err)
			}
		}
		select {
		case h := <-v.heard:
			v.votes[h.member] = h.vote
			v.secure(h.member)
		case <-v.again:
			v.askAgain()
		case <-v.ctx.Done():
			return v.close(driver.Grant{}, v.doubt(v.ctx.Err()))
		}
	}
}

// close ends the ballot: what it may have left is released, unless it won.
func (v *ballot) close(grant driver.Grant, err error) (driver.Grant, error) {
	if err == nil {
		r := v.r
		v.b.holds.granted(r, v.last, v.start.Add(r.TTL), v.b.atMembers(r.TTL), len(v.votes), v.news)
		return grant, nil
	}
	if v.known && !errors.Is(err, driver.ErrHeld) {
		// It may hold still, and rely on the votes it has.
		v.b.holds.undecided(v.r.Owner, driver.Final(err))
		return driver.Grant{}, err
	}
	v.over.Store(true)
	v.giveBack(v.b.holds.drop(v.r.Owner))
	return driver.Grant{}, err
}

// giveBack releases what the attempt may have left. It waits a moment for those that had
// granted, so that a refused attempt leaves nothing behind where all is well. Members may
// keep what was there before until kept.
func (v *ballot) giveBack(kept time.Time) {
	pending, answers := make(set, len(v.votes)), make(chan answer, len(v.votes))
	for i, vote := range v.votes {
		if !vote.untaken() || v.known {
			pending[i] = vote.state == granted
			v.b.clean(v.ctx, v.b.members[i], v.r.Hold, kept, func(err error) { answers <- answer{i, err} })
		}
	}
	late := time.After(v.b.linger(v.start, v.r.TTL))
	for v.b.worthWaiting(pending.has) {
		select {
		case a := <-answers:
			pending[a.member] = false
		case <-late:
			return
		case <-v.ctx.Done():
			return
		}
	}
}

// ask asks a member for its vote.
func (v *ballot) ask(i int) {
	v.votes[i] = vote{state: asked}
	m, r := v.b.members[i], v.r
	r.TTL += v.b.drift(r.TTL)
	r.OnLost = v.news.at(i)
	v.b.send(m, asks, []string{r.Owner}, func(bool) {
		if v.over.Load() {
			return // it came to nothing before this was its turn
		}
		m.remains.forget(r.Owner)
		ctx, cancel := v.b.bound(v.ctx, v.r.TTL)
		defer cancel()
		grant, err := m.Acquire(ctx, r)
		m.note(err)
		v.heard <- heard{i, vote{voteOf(err, granted), grant, err}}
	})
}

// voteOf sorts an answer.
func voteOf(err error, yes state) state {
	switch {
	case err == nil:
		return yes
	case errors.Is(err, driver.ErrHeld), driver.Final(err):
		return denied
	}
	return silent
}

// secure asks a member that granted to raise its counter above the grant's fences, if
// they are known by now and it is not above them anyway. Only an owner's raise counts:
// one that came late would be one for a lock that is another's.
func (v *ballot) secure(i int) {
	vt := &v.votes[i]
	if vt.state != granted || v.last == 0 {
		return
	}
	if vt.grant.Last() >= v.last || !v.b.caps.Fence {
		vt.state = raised
		return
	}
	grant, m := vt.grant, v.b.members[i]
	h := v.r.Hold
	h.TTL += v.b.drift(h.TTL)
	h.Floor = v.last
	vt.state = asked
	v.b.send(m, asks, []string{h.Owner}, func(bool) {
		if v.over.Load() {
			return
		}
		ctx, cancel := v.b.bound(v.ctx, v.r.TTL)
		defer cancel()
		err := renewOne(ctx, m, h)
		switch {
		case errors.Is(err, driver.ErrLost):
			err = fmt.Errorf("it was granted, and is gone (%v)", err)
		case errors.Is(err, driver.ErrUnsent):
			err = fmt.Errorf("it was granted, and not raised (%v)", err)
		}
		v.heard <- heard{i, vote{voteOf(err, raised), grant, err}}
	})
}

// count looks at the votes and says whether that is all.
func (v *ballot) count() (driver.Grant, error, bool) {
	n := v.tally()
	q := v.b.majority
	switch {
	case v.last == 0 && n.yes >= q:
		v.number()
		return v.count()
	case v.last > 0 && v.in(raised) >= q:
		return v.won()
	case n.final > n.of-q:
		return driver.Grant{}, fmt.Errorf("quorum: acquire %s: %w", driver.Quote(v.r.Name), n.finalErr), true
	case n.held+n.final > n.of-q && v.last == 0:
		return v.refused(n)
	case v.b.worthWaiting(v.asked):
		return driver.Grant{}, nil, false
	case v.known || v.last > 0 || n.held == 0 || n.yes+n.held+n.final < q:
		return driver.Grant{}, v.doubt(nil), true
	}
	// With members that do not answer, neither has got a majority of the others.
	return v.refused(n)
}

// number chooses the fences when a majority has granted: above all that any of them has
// given, and so above those of the holder before, who had raised one of them.
func (v *ballot) number() {
	for _, vt := range v.votes {
		if vt.state == granted {
			v.first = max(v.first, vt.grant.Fence)
		}
	}
	span := uint64(1)
	if v.r.Mode.Alone() {
		span = max(v.r.Fences, 1)
	}
	v.last = max(v.first+span-1, 1)
	for i := range v.votes {
		v.secure(i)
	}
}

// won makes the grant. It is not believed beyond the TTL that was asked for, less the
// drift where a member had less to give.
func (v *ballot) won() (driver.Grant, error, bool) {
	ttl := time.Duration(0)
	for _, vt := range v.votes {
		if d := vt.grant.TTL; (vt.state == granted || vt.state == raised) && (ttl == 0 || d < ttl) {
			ttl = d
		}
	}
	ttl = min(ttl-v.b.drift(v.r.TTL), v.r.TTL)
	if time.Since(v.start) >= ttl {
		return driver.Grant{}, v.doubt(errLate), true
	}
	if !v.b.caps.Fence {
		return driver.Grant{Fences: 1, TTL: ttl}, nil, true
	}
	return driver.Grant{Fence: v.first, Fences: v.last - v.first + 1, TTL: ttl}, nil, true
}

var errLate = errors.New("the majority came after the end of the TTL")

// asked reports whether a member's answer is awaited.
func (v *ballot) asked(i int) bool { return v.votes[i].state == asked }

func (v *ballot) in(s state) int {
	n := 0
	for _, vt := range v.votes {
		if vt.state == s {
			n++
		}
	}
	return n
}

// tally counts the votes. One that is being raised counts as granted no more: its
// answer is awaited.
func (v *ballot) tally() *tally {
	t := &tally{of: len(v.votes)}
	for i, vt := range v.votes {
		if vt.state != asked {
			t.add(v.b.members[i], vt.err)
		}
	}
	return t
}

// doubt is the error if nobody knows the outcome; why may be nil.
func (v *ballot) doubt(why error) error {
	err := v.tally().unknown("acquire", v.r.Name)
	if why == nil {
		return err
	}
	return fmt.Errorf("%w: %w", err, why)
}

// shortly is a pause after which a split vote is unlikely to be split again.
func shortly() time.Duration { return 20*time.Millisecond + rand.N(80*time.Millisecond) }
