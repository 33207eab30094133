package quorum

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/distlock/distlock/driver"
)

// vote is a member's answer to an attempt so far.
type vote struct {
	state voteState
	grant driver.Grant
	since time.Time // granted: the answer's time
	err   error
}

type voteState uint8

const (
	asked   voteState = iota // no answer yet
	granted                  // and the member's fence counter may be below the grant's last fence
	raised                   // granted, and later grants' fences are above the last one
	denied                   // another Owner holds, or the request can never succeed
	silent                   // unknown
)

// stateOf returns the state for an answer; yes if err is nil.
func stateOf(err error, yes voteState) voteState {
	switch {
	case err == nil:
		return yes
	case errors.Is(err, driver.ErrHeld), driver.Final(err):
		return denied
	}
	return silent
}

// untaken reports whether the attempt has left nothing at the member.
func (v *vote) untaken() bool {
	return v.grant.Fences == 0 && (v.state == denied || v.state == silent && errors.Is(v.err, driver.ErrUnsent))
}

// spent reports whether the member has released the Owner there, which must not be requested again.
func (v *vote) spent() bool { return errors.Is(v.err, driver.ErrSpent) }

// rivals returns the holders that the member named.
func (v vote) rivals() []driver.Holder {
	var all []driver.Holder
	if held := heldBy(v.err); held != nil {
		for _, h := range held.Holders {
			if h.Owner != "" {
				all = append(all, h)
			}
		}
	}
	return all
}

// heldBy returns err as a refusal, or nil.
func heldBy(err error) *driver.HeldError {
	var held *driver.HeldError
	errors.As(err, &held)
	return held
}

// votes are the answers of all members to an attempt.
type votes []vote

// asked reports whether a member's answer is awaited.
func (vs votes) asked(member int) bool { return vs[member].state == asked }

func (vs votes) count(s voteState) int {
	n := 0
	for _, v := range vs {
		if v.state == s {
			n++
		}
	}
	return n
}

// tally counts the votes. A vote that is being raised does not count until it is answered.
func (vs votes) tally(members []*member) *tally {
	t := &tally{of: len(vs)}
	for i, v := range vs {
		if v.state != asked {
			t.add(members[i], v.err)
		}
	}
	return t
}

// rivals returns the holders that the members named, each as often as it was named.
func (vs votes) rivals() []driver.Holder {
	var all []driver.Holder
	for _, v := range vs {
		all = append(all, v.rivals()...)
	}
	return all
}

// strengths returns the number of votes of each rival, by Owner.
func (vs votes) strengths() map[string]int {
	count := map[string]int{}
	for _, h := range vs.rivals() {
		count[h.Owner]++
	}
	return count
}

// strongest returns the number of votes of the strongest rival, as far as members name it.
func (vs votes) strongest() int {
	top := 0
	for _, n := range vs.strengths() {
		top = max(top, n)
	}
	return top
}

// favoured reports whether an attempt with yes votes keeps them and asks again. top is the
// strongest rival's number of votes; last says that it has paused for the longest time.
//
// The favourite has the most votes. Of several with as many it is the one with the vote of
// the earliest member: votes only grow until an attempt gives up, so no two attempts can
// each take the other for the stronger.
//
// A favourite may be dead, and its votes block others for a TTL. So of equals only the last
// one gives up at once, and those in the middle a little later: the one that gets the votes
// which become free is the strongest then.
func (vs votes) favoured(yes, top int, last bool) bool {
	switch {
	case top == 0:
		return vs.leads() // the members name no rivals
	case yes != top:
		return yes > top
	}
	ahead, behind := vs.equals(top)
	return !ahead || behind && !last
}

// leads reports whether the first member that answered has granted.
func (vs votes) leads() bool {
	for _, v := range vs {
		if v.state != silent && v.state != asked {
			return v.state == granted
		}
	}
	return false
}

// equals reports whether there are rivals with n votes whose first vote is from an earlier
// member than the attempt's own first vote, and from a later one.
func (vs votes) equals(n int) (ahead, behind bool) {
	count, mine := vs.strengths(), false
	for _, v := range vs {
		mine = mine || v.state == granted
		for _, h := range v.rivals() {
			if count[h.Owner] == n {
				ahead, behind = ahead || !mine, behind || mine
			}
			delete(count, h.Owner) // only its first vote matters
		}
	}
	return ahead, behind
}

// blockers returns the rivals, each once, the strongest first. It leaves out their fences, which
// single members gave.
func (vs votes) blockers() []driver.Holder {
	const enough = 8
	count, seen := vs.strengths(), map[string]bool{}
	var all []driver.Holder
	for _, h := range vs.rivals() {
		if !seen[h.Owner] {
			seen[h.Owner], h.Fence = true, 0
			all = append(all, h)
		}
	}
	slices.SortStableFunc(all, func(a, b driver.Holder) int { return cmp.Compare(count[b.Owner], count[a.Owner]) })
	return all[:min(len(all), enough)]
}

// retry returns when a majority is free if only time passes; 0 if it is not known.
func (vs votes) retry(majority int) time.Duration {
	var ends []time.Duration
	for _, v := range vs {
		switch held := heldBy(v.err); {
		case v.state == granted:
			ends = append(ends, 0)
		case held != nil && held.Retry > 0:
			ends = append(ends, held.Retry)
		}
	}
	if len(ends) < majority {
		return 0
	}
	slices.Sort(ends)
	return ends[majority-1]
}
