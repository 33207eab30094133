package quorum

import (
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
)

// grantedHolds are the holds that this backend was granted or renews, and has not released. They never
// decide whether a lock is held. They show which Owners must not lose their votes by a failed attempt, and
// the request for a member that has lost its vote.
type grantedHolds struct {
	mu sync.Mutex
	m  map[string]*grantedHold
}

// grantedHold is one Owner's hold. grantedHolds.mu guards it.
type grantedHold struct {
	request driver.Request // as it was granted last; of a hold that was only renewed, what a renewal says
	last    uint64         // the greatest fence; 0: not known
	until   time.Time      // it lives until then at least
	kept    time.Time      // members may keep votes until then
	pending bool           // an Acquire is running, or its outcome is unknown
	missed  []int          // by member: consecutive renewals that found no vote there
	loss    *lossSignal
}

// granted adds a hold. A life that was renewed for longer before stays.
func (hs *grantedHolds) granted(r driver.Request, last uint64, until, kept time.Time, members int, loss *lossSignal) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	h := &grantedHold{request: r, last: last, until: until, kept: kept, missed: make([]int, members), loss: loss}
	if old := hs.m[r.Owner]; old != nil {
		h.until, h.kept = later(until, old.until), later(kept, old.kept)
	}
	hs.put(h)
}

// put adds a hold. mu is held.
func (hs *grantedHolds) put(h *grantedHold) {
	if hs.m == nil {
		hs.m = map[string]*grantedHold{}
	}
	hs.removeExpired()
	hs.m[h.request.Owner] = h
}

// removeExpired visits two holds for each one added, which keeps those that ended without a
// release in the minority.
func (hs *grantedHolds) removeExpired() {
	visits, now := 2, time.Now()
	for owner, h := range hs.m {
		if now.After(h.until) && now.After(h.kept) {
			delete(hs.m, owner)
		}
		if visits--; visits == 0 {
			return
		}
	}
}

// acquiring notes that an Acquire for owner is running, and reports whether owner may hold.
func (hs *grantedHolds) acquiring(owner string) (known bool) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	h := hs.m[owner]
	if h == nil || time.Now().After(h.until) {
		return false
	}
	h.pending = true
	return true
}

// update calls f with owner's hold, if there is one.
func (hs *grantedHolds) update(owner string, f func(*grantedHold)) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if h := hs.m[owner]; h != nil {
		f(h)
	}
}

// undecided notes that an Acquire for owner ended without a decision. unchanged says that it
// is known to have changed nothing.
func (hs *grantedHolds) undecided(owner string, unchanged bool) {
	hs.update(owner, func(h *grantedHold) { h.pending = !unchanged })
}

// renewing notes that members may keep a hold until then. It may have been granted through another
// connection, or before this program was restarted.
func (hs *grantedHolds) renewing(r driver.Hold, until time.Time, members int) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	h := hs.m[r.Owner]
	if h == nil {
		r.Floor = 0 // an attempt has none
		h = &grantedHold{request: driver.Request{Hold: r, Fences: 1}, missed: make([]int, members)}
		hs.put(h)
	}
	h.kept = later(h.kept, until)
}

// renewed moves the end of a hold that a majority has renewed.
func (hs *grantedHolds) renewed(r driver.Hold, until time.Time) {
	hs.update(r.Owner, func(h *grantedHold) {
		h.request.TTL, h.until, h.last = r.TTL, later(until, h.until), max(h.last, r.Floor)
	})
}

// remove removes an Owner whose hold is released or lost. It returns until when members may keep
// votes for it, as far as known.
func (hs *grantedHolds) remove(owner string) (kept time.Time) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if h := hs.m[owner]; h != nil {
		kept = h.kept
	}
	delete(hs.m, owner)
	return kept
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// found stores whether a renewal found the hold at a member, and reports whether it was missing
// there twice in a row.
func (hs *grantedHolds) found(owner string, member int, there bool) (missing bool) {
	hs.update(owner, func(h *grantedHold) {
		if there {
			h.missed[member] = 0
		} else {
			h.missed[member]++
		}
		missing = h.missed[member] >= 2
	})
	return missing
}

// wanted returns the hold to request where it is missing. It returns false if votes must not be
// won back now.
func (hs *grantedHolds) wanted(owner string) (w grantedHold, ok bool) {
	hs.update(owner, func(h *grantedHold) {
		left := time.Until(h.until)
		w, ok = *h, left > 0 && !h.pending
		w.request.TTL = max(w.request.TTL, left)
	})
	return w, ok
}

// lossSignal counts the members that reported by themselves that a hold is lost. It calls
// onLost when the remaining ones are no majority.
type lossSignal struct {
	mu     sync.Mutex
	lost   []bool // by member
	may    int    // number of members that may lose it
	onLost func() // nil after it was called
}

func newLossSignal(members, majority int, onLost func()) *lossSignal {
	if onLost == nil {
		return nil
	}
	return &lossSignal{lost: make([]bool, members), may: members - majority, onLost: onLost}
}

// member returns the OnLost function for member i; nil if there is no onLost.
func (s *lossSignal) member(i int) func() {
	if s == nil {
		return nil
	}
	return func() { s.set(i, true) }
}

// set stores whether member i has lost the hold. s may be nil.
func (s *lossSignal) set(i int, lost bool) {
	if s == nil {
		return
	}
	s.mu.Lock()
	s.lost[i] = lost
	count := 0
	for _, lost := range s.lost {
		if lost {
			count++
		}
	}
	var onLost func()
	if count > s.may {
		onLost, s.onLost = s.onLost, nil
	}
	s.mu.Unlock()
	if onLost != nil {
		onLost()
	}
}
