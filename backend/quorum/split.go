package quorum

import (
	"cmp"
	"slices"
	"time"

	"github.com/distlock/distlock/driver"
)

// firstRest is how long the favourite of a split vote waits before it asks again, which
// doubles up to longestRest: the others need the time to take back their votes. It goes
// on for a quarter of a member's timeout at most.
const (
	firstRest   = 200 * time.Microsecond
	longestRest = 10 * time.Millisecond
)

// refused answers when a majority can't be had because others are in the way.
//
// Several who try at once can split the vote, so that nobody has a majority. If all of
// them gave up and came again they might do so for ever. So a favourite keeps its votes
// and asks again for the rest, which the others release. And everybody asks again once,
// as votes may be left of a holder that is just going.
func (v *ballot) refused(n *tally) (driver.Grant, error, bool) {
	top := v.strongest()
	if top < v.b.majority && !v.known {
		if v.b.worthWaiting(v.asked) {
			return driver.Grant{}, nil, false // one of the rest may make it the favourite
		}
		if n.yes > 0 && v.rested < v.b.timeout(v.r.TTL)/4 && (v.rest == 0 || v.favoured(n.yes, top)) {
			v.rest = min(max(2*v.rest, firstRest), longestRest)
			v.rested += v.rest
			v.again = time.After(v.rest)
			return driver.Grant{}, nil, false
		}
	}
	return driver.Grant{}, v.heldError(top), true
}

// favoured reports whether to keep the votes and ask again. The favourite is who has the
// most votes, and of equals the one with the vote of the earliest member: votes only
// grow until somebody gives up, so no two can each take the other for the stronger.
//
// A favourite may be dead, and its votes keep others out for a TTL. So of equals only
// the last gives up at once, and those between the two a little later: who gets the
// votes that come free is the strongest then.
func (v *ballot) favoured(yes, top int) bool {
	switch {
	case top == 0:
		return v.leads() // nobody says who is in the way
	case yes != top:
		return yes > top
	}
	ahead, behind := v.equals(top)
	return !ahead || behind && v.rest < longestRest
}

// equals reports whether there are rivals with that many votes whose first one is of an
// earlier member than the attempt's own first, and of a later one.
func (v *ballot) equals(votes int) (ahead, behind bool) {
	count, mine := v.strengths(), false
	for _, vt := range v.votes {
		mine = mine || vt.state == granted
		for _, h := range vt.rivals() {
			if count[h.Owner] == votes {
				ahead, behind = ahead || !mine, behind || mine
			}
			delete(count, h.Owner) // only its first vote matters
		}
	}
	return ahead, behind
}

// leads reports whether the first member that answered has granted.
func (v *ballot) leads() bool {
	for _, vt := range v.votes {
		if vt.state != silent && vt.state != asked {
			return vt.state == granted
		}
	}
	return false
}

// askAgain asks those for their votes who had given them to others.
func (v *ballot) askAgain() {
	v.again = nil
	for i, vt := range v.votes {
		if heldBy(vt.err) != nil {
			v.ask(i)
		}
	}
}

// strongest is how many members the strongest rival has, as far as they name it.
func (v *ballot) strongest() int {
	top := 0
	for _, n := range v.strengths() {
		top = max(top, n)
	}
	return top
}

// strengths are how many members each rival has, by Owner.
func (v *ballot) strengths() map[string]int {
	count := map[string]int{}
	for _, h := range v.rivals() {
		count[h.Owner]++
	}
	return count
}

// rivals are the holders whom the members named, each as often as it was named.
func (v *ballot) rivals() []driver.Holder {
	var all []driver.Holder
	for _, vt := range v.votes {
		all = append(all, vt.rivals()...)
	}
	return all
}

// rivals are the holders whom one member named.
func (vt vote) rivals() []driver.Holder {
	var all []driver.Holder
	if held := heldBy(vt.err); held != nil {
		for _, h := range held.Holders {
			if h.Owner != "" {
				all = append(all, h)
			}
		}
	}
	return all
}

// heldError says who is in the way, and when a majority is free if time alone frees it.
func (v *ballot) heldError(top int) error {
	e := &driver.HeldError{Holders: v.inTheWay()}
	if top < v.b.majority && v.in(granted) > 0 {
		e.Retry = shortly()
		return e
	}
	var ends []time.Duration
	for _, vt := range v.votes {
		switch held := heldBy(vt.err); {
		case vt.state == granted:
			ends = append(ends, 0)
		case held != nil && held.Retry > 0:
			ends = append(ends, held.Retry)
		}
	}
	if len(ends) >= v.b.majority {
		slices.Sort(ends)
		e.Retry = ends[v.b.majority-1]
	}
	return e
}

// inTheWay are the rivals, each once, the strongest first. Their fences are those of
// single members, and not told.
func (v *ballot) inTheWay() []driver.Holder {
	const enough = 8
	count, seen := v.strengths(), map[string]bool{}
	var all []driver.Holder
	for _, h := range v.rivals() {
		if !seen[h.Owner] {
			seen[h.Owner], h.Fence = true, 0
			all = append(all, h)
		}
	}
	slices.SortStableFunc(all, func(a, b driver.Holder) int { return cmp.Compare(count[b.Owner], count[a.Owner]) })
	return all[:min(len(all), enough)]
}
