package quorum

import (
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
)

// holds is what this backend was granted and has not released. It is never asked
// whether somebody holds: it says which Owners must not lose the votes they have by an
// attempt that fails, and what to ask for at a member that has to be won back.
type holds struct {
	mu sync.Mutex
	m  map[string]*hold
}

// hold is what is known of one Owner's hold. holds.mu guards it.
type hold struct {
	request driver.Request // as it was granted last
	last    uint64         // the greatest fence
	until   time.Time      // what was granted or renewed lives at least until then
	kept    time.Time      // members may keep votes until then
	ending  bool           // it is to end by itself: nothing is won back
	asking  bool           // an Acquire is under way, or nobody knows what came of one
	missed  []int          // by member: renewals in a row that found nothing there
	news    *news
}

// granted enters a hold. What was renewed for longer before lives on.
func (hs *holds) granted(r driver.Request, last uint64, until, kept time.Time, members int, n *news) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if hs.m == nil {
		hs.m = map[string]*hold{}
	}
	hs.tidy()
	h := &hold{request: r, last: last, until: until, kept: kept, missed: make([]int, members), news: n}
	if old := hs.m[r.Owner]; old != nil {
		h.until, h.kept = later(until, old.until), later(kept, old.kept)
	}
	hs.m[r.Owner] = h
}

// tidy looks at two entries for each one that is added, which is enough to keep those in
// the minority that ended without a release.
func (hs *holds) tidy() {
	looks, now := 2, time.Now()
	for owner, h := range hs.m {
		if now.After(h.until) && now.After(h.kept) {
			delete(hs.m, owner)
		}
		if looks--; looks == 0 {
			return
		}
	}
}

// ask notes that an Acquire for owner is under way, and reports whether owner may hold.
func (hs *holds) ask(owner string) (known bool, mode driver.Mode) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	h := hs.m[owner]
	if h == nil || time.Now().After(h.until) {
		return false, 0
	}
	h.asking = true
	return true, h.request.Mode
}

// undecided says that an Acquire for owner is over and did not come to a decision;
// unchanged if it is known to have changed nothing.
func (hs *holds) undecided(owner string, unchanged bool) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if h := hs.m[owner]; h != nil {
		h.asking = !unchanged
	}
}

// renewing notes that members are asked to keep a hold until then.
func (hs *holds) renewing(r driver.Hold, until time.Time) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if h := hs.m[r.Owner]; h != nil {
		h.kept, h.ending = later(h.kept, until), r.Shorten
	}
}

// renewed moves the end of a hold that a majority has renewed.
func (hs *holds) renewed(r driver.Hold, until time.Time) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	h := hs.m[r.Owner]
	if h == nil {
		return
	}
	if !r.Shorten {
		until = later(until, h.until)
	}
	h.request.TTL, h.until = r.TTL, until
	h.last = max(h.last, r.Floor)
}

// drop forgets an Owner who was released or has lost, and tells until when members may
// keep votes for it, as far as that is known.
func (hs *holds) drop(owner string) (kept time.Time) {
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

// found enters what a renewal found at a member, and reports whether the hold has been
// missing there twice in a row.
func (hs *holds) found(owner string, member int, there bool) (missing bool) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	h := hs.m[owner]
	switch {
	case h == nil:
		return false
	case there:
		h.missed[member] = 0
		return false
	}
	h.missed[member]++
	return h.missed[member] >= 2
}

// wanted is what to ask for where a live hold is missing; false if there is none that
// may be won back now.
func (hs *holds) wanted(owner string) (hold, bool) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	h := hs.m[owner]
	left := time.Duration(0)
	if h != nil {
		left = time.Until(h.until)
	}
	if left <= 0 || h.asking || h.ending {
		return hold{}, false
	}
	w := *h
	w.request.TTL = max(w.request.TTL, left)
	return w, true
}
