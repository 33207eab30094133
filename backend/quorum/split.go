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
// and asks again for the rest, which the others release: it is the one that has the
// vote of the first member that answers at all. There is one such, whatever the others
// see. Who died with that vote would keep everybody out for a TTL, so it is a favourite
// too who has more votes than any other; of two favourites one gets a majority. And
// everybody asks again once, as votes may be left of a holder that is just going.
func (v *ballot) refused(n *tally) (driver.Grant, error, bool) {
	top := v.strongest()
	if top < v.b.majority && !v.known {
		if v.b.worthWaiting(v.asked) {
			return driver.Grant{}, nil, false // one of the rest may make it the favourite
		}
		if n.yes > 0 && v.rested < v.b.timeout(v.r.TTL)/4 && (v.rest == 0 || v.leads() || n.yes > top && top > 0) {
			v.rest = min(max(2*v.rest, firstRest), longestRest)
			v.rested += v.rest
			v.again = time.After(v.rest)
			return driver.Grant{}, nil, false
		}
	}
	return driver.Grant{}, v.heldError(top), true
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
	top, count := 0, map[string]int{}
	for _, h := range v.rivals() {
		count[h.Owner]++
		top = max(top, count[h.Owner])
	}
	return top
}

// rivals are the holders whom the members named, each as often as it was named.
func (v *ballot) rivals() []driver.Holder {
	var all []driver.Holder
	for _, vt := range v.votes {
		if held := heldBy(vt.err); held != nil {
			for _, h := range held.Holders {
				if h.Owner != "" {
					all = append(all, h)
				}
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
	count := map[string]int{}
	var all []driver.Holder
	for _, h := range v.rivals() {
		if count[h.Owner]++; count[h.Owner] == 1 {
			h.Fence = 0
			all = append(all, h)
		}
	}
	slices.SortStableFunc(all, func(a, b driver.Holder) int { return cmp.Compare(count[b.Owner], count[a.Owner]) })
	return all[:min(len(all), enough)]
}
