package server

import (
	"cmp"
	"container/list"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
)

// Bounds of what a server remembers.
const (
	mostNames     = 500 // those used last
	mostSpells    = 32  // of a name
	mostWaiting   = 256 // of a name, and as many holds
	mostIncidents = 200
)

// seen records the calls to this server since its start, for its page. No lock depends on it: other servers before
// the same backend see other calls. It is safe for concurrent use, and its size is bounded.
type seen struct {
	began time.Time

	// onGrant and onEnd are called for each grant and its end, while mu is locked.
	onGrant, onEnd func(*holdRecord)

	mu        sync.Mutex
	names     map[string]*list.Element // of *nameSeen
	recent    list.List                // the name used last is the first
	incidents []incident               // the newest is the last
	count     int                      // of all incidents
	calls     map[string]*callSeen     // of the backend
}

// nameSeen records the calls for one name.
type nameSeen struct {
	name    string
	onEnd   func(*holdRecord)
	limit   int
	grants  series    // and for how long the lock was held
	held    time.Time // since when it has been; it isn't while holds is empty
	waits   sample
	waiting map[string]waitSpan    // of each Owner that waits
	holds   map[string]*holdRecord // by Owner
	records []*holdRecord          // the newest is the last
}

// waitSpan is when an Owner that waits made its first attempt, and its last.
type waitSpan struct{ first, last time.Time }

// holdRecord is one grant, from its beginning to its end.
type holdRecord struct {
	Fence, Last uint64 // the fences that it had
	Mode        driver.Mode
	Who         string
	Began       time.Time
	Waited      time.Duration
	Ended       time.Time // zero: not seen
	End         string    // how, as a key of texts
	ttl         time.Duration
	until       time.Time // if it is not renewed; zero: not known
	foreign     bool      // granted by another server
}

// incident is a loss, or a call after which it is not known whether a hold lives.
type incident struct {
	Number int
	At     time.Time
	Kind   string // lost, unknown or broken
	Name   string
	Fence  uint64
	Who    string // the holder
	By     string // the identity that broke it
	Detail string
	owner  string
}

// ID identifies the incident's row in a page.
func (i incident) ID() string { return fmt.Sprintf("i%d", i.Number) }

// Lasted returns how long a record took that has ended.
func (sp holdRecord) Lasted() time.Duration { return sp.Ended.Sub(sp.Began) }

func newSeen() *seen {
	ignore := func(*holdRecord) {}
	return &seen{began: time.Now(), onGrant: ignore, onEnd: ignore, names: map[string]*list.Element{}, calls: map[string]*callSeen{}}
}

// name returns what is known of a name, which is new if it was forgotten. The caller has locked mu.
func (s *seen) name(name string) *nameSeen {
	if e := s.names[name]; e != nil {
		s.recent.MoveToFront(e)
		return e.Value.(*nameSeen)
	}
	n := &nameSeen{name: name, onEnd: s.onEnd, limit: 1, waiting: map[string]waitSpan{}, holds: map[string]*holdRecord{}}
	s.names[name] = s.recent.PushFront(n)
	if s.recent.Len() > mostNames {
		delete(s.names, s.recent.Remove(s.recent.Back()).(*nameSeen).name)
	}
	return n
}

// old returns what is known of a name, or nil. The caller has locked mu.
func (s *seen) old(name string) *nameSeen {
	if e := s.names[name]; e != nil {
		return e.Value.(*nameSeen)
	}
	return nil
}

// refused notes an attempt of an Owner that waits.
func (s *seen) refused(h driver.Hold, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.name(h.Name)
	w, known := n.waiting[h.Owner]
	if !known {
		makeRoom(n.waiting)
		w.first = at
	}
	w.last = at
	n.waiting[h.Owner] = w
}

// makeRoom deletes any element of a map that is full.
func makeRoom[V any](m map[string]V) {
	for k := range m {
		if len(m) < mostWaiting {
			return
		}
		delete(m, k)
	}
}

// granted notes a grant. The request that led to it arrived at an instant, and the backend was called at another.
func (s *seen) granted(r driver.Request, g driver.Grant, arrived, called time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.name(r.Name)
	n.expire(called)
	if h := n.holds[r.Owner]; h != nil {
		if h.Fence == g.Fence {
			return // a repeated request
		}
		n.end(r.Owner, h, called, "end.refenced")
	}
	if w, ok := n.waiting[r.Owner]; ok {
		arrived = w.first
		delete(n.waiting, r.Owner)
	}
	n.limit = max(r.Limit, 1)
	sp := &holdRecord{
		Fence: g.Fence, Last: g.Last(), Mode: r.Mode, Who: describe(r.Meta), Began: called, Waited: max(called.Sub(arrived), 0),
		ttl: g.TTL, until: called.Add(g.TTL),
	}
	s.onGrant(sp)
	n.grants.add(called, 1, 0)
	n.waits.add(sp.Waited)
	makeRoom(n.holds)
	if len(n.holds) == 0 {
		n.held = called
	}
	n.holds[r.Owner] = sp
	n.keep(sp)
}

// keep adds a record to the history of a name.
func (n *nameSeen) keep(sp *holdRecord) {
	if i := slices.IndexFunc(n.records, func(o *holdRecord) bool { return o.Fence == sp.Fence && sp.Fence != 0 }); i >= 0 {
		n.records[i] = sp // it was seen at the backend first
		return
	}
	n.records = append(n.records, sp)
	if len(n.records) > mostSpells {
		n.records = slices.Delete(n.records, 0, 1)
	}
}

// end notes that a hold has ended.
func (n *nameSeen) end(owner string, sp *holdRecord, at time.Time, how string) {
	sp.Ended, sp.End = at, how
	delete(n.holds, owner)
	n.onEnd(sp)
	switch {
	case n.limit > 1: // each permit counts
		n.grants.span(sp.Began, at)
	case len(n.holds) == 0:
		n.grants.span(n.held, at)
	}
}

// renewed notes that a hold lives on.
func (s *seen) renewed(h driver.Hold, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.old(h.Name); n != nil && n.holds[h.Owner] != nil {
		s.name(h.Name) // so that it is not forgotten
		n.holds[h.Owner].ttl, n.holds[h.Owner].until = h.TTL, at.Add(h.TTL)
	}
}

// released notes the release of a hold, or that an Owner waits no longer.
func (s *seen) released(h driver.Hold) { s.over(h, "end.released") }

// over notes the end of a hold, and returns what is known of it.
func (s *seen) over(h driver.Hold, how string) holdRecord {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.old(h.Name)
	if n == nil {
		return holdRecord{}
	}
	delete(n.waiting, h.Owner)
	sp := n.holds[h.Owner]
	if sp == nil {
		return holdRecord{}
	}
	n.end(h.Owner, sp, time.Now(), how)
	return *sp
}

// lost notes that a hold was lost.
func (s *seen) lost(h driver.Hold) {
	sp := s.over(h, "end.lost")
	s.report(incident{Kind: "lost", Name: h.Name, Fence: sp.Fence, Who: sp.Who, owner: h.Owner})
}

// broken notes that a lock was unlocked by force, and by which identity.
func (s *seen) broken(h driver.Hold, fence uint64, by string) {
	sp := s.over(h, "end.broken")
	s.report(incident{Kind: "broken", Name: h.Name, Fence: cmp.Or(sp.Fence, fence), Who: sp.Who, By: by, owner: h.Owner})
}

// unknownRenewal notes a call for a hold whose outcome is not known.
func (s *seen) unknownRenewal(h driver.Hold, err error) {
	i := incident{Kind: "unknown", Name: h.Name, owner: h.Owner, Detail: short(strings.ReplaceAll(err.Error(), h.Owner, "…"))}
	s.mu.Lock()
	if n := s.old(h.Name); n != nil && n.holds[h.Owner] != nil {
		i.Fence, i.Who = n.holds[h.Owner].Fence, n.holds[h.Owner].Who
	}
	s.mu.Unlock()
	s.report(i)
}

// report keeps an incident. The loss of a hold is one, however often it is noticed.
func (s *seen) report(i incident) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := func(o incident) bool { return o.owner == i.owner && o.Kind != "unknown" }
	if i.Kind == "lost" && slices.ContainsFunc(s.incidents, known) {
		return
	}
	s.count++
	i.At, i.Number = time.Now(), s.count
	s.incidents = append(s.incidents, i)
	if len(s.incidents) > mostIncidents {
		s.incidents = slices.Delete(s.incidents, 0, 1)
	}
}

// observed adds the holders that the backend names to the history: other servers may have granted them.
func (s *seen) observed(l lock) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.old(l.Name)
	if n == nil && len(l.Holders) == 0 {
		return
	}
	n = s.name(l.Name)
	for _, h := range l.Holders {
		known := func(sp *holdRecord) bool { return sp.Fence <= h.Fence && h.Fence <= sp.Last }
		if h.Fence != 0 && !slices.ContainsFunc(n.records, known) {
			n.keep(&holdRecord{Fence: h.Fence, Last: h.Fence, Mode: h.Mode, Who: h.String(), Began: cmp.Or(h.Since, time.Now()), foreign: true})
		}
	}
	for _, sp := range n.records {
		there := func(h party) bool { return sp.Fence <= h.Fence && h.Fence <= sp.Last }
		if sp.foreign && sp.Ended.IsZero() && !slices.ContainsFunc(l.Holders, there) {
			sp.Ended, sp.End = time.Now(), "end.gone"
		}
	}
}

// ttl returns the TTL of a hold, or 0 if it is not known.
func (s *seen) ttl(name, owner string) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.old(name); n != nil && n.holds[owner] != nil {
		return n.holds[owner].ttl
	}
	return 0
}

// forgetTime is how long after its last attempt an Owner counts as waiting. One attempt takes up to MaxWait.
const forgetTime = httpwire.MaxWait + 30*time.Second

// expire ends the holds whose TTL is over, and removes waiters that have ceased to wait. The caller has locked mu.
func (n *nameSeen) expire(now time.Time) {
	maps.DeleteFunc(n.waiting, func(_ string, w waitSpan) bool { return now.Sub(w.last) > forgetTime })
	for owner, sp := range n.holds {
		if sp.until.Before(now) {
			n.end(owner, sp, sp.until, "end.expired")
		}
	}
}

// expire ends the holds of all names whose TTL is over.
func (s *seen) expire(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for e := s.recent.Front(); e != nil; e = e.Next() {
		e.Value.(*nameSeen).expire(now)
	}
}

// use describes how much a name is used.
type use struct {
	Name     string
	Rate     []float64 // grants a second, in each step
	Now      float64   // grants a second, over the last minute
	P50, P99 time.Duration
	Share    float64 // of the last minute in which it was held
	Waiting  int
	total    time.Duration // of the last waits
}

// use returns how much a name was used. The caller has locked mu.
func (n *nameSeen) use(now time.Time) use {
	n.expire(now)
	grants := n.grants // with the holds that go on
	grants.steps = slices.Clone(grants.steps)
	for _, sp := range n.holds {
		if n.limit > 1 {
			grants.span(sp.Began, now)
			continue
		}
		grants.span(n.held, now)
		break
	}
	steps := grants.last(now)
	u := use{Name: n.name, P50: n.waits.quantile(.5), P99: n.waits.quantile(.99), Waiting: len(n.waiting), total: n.waits.sum()}
	var held time.Duration
	for i, st := range steps {
		u.Rate = append(u.Rate, float64(st.n)/stepTime.Seconds())
		if i >= len(steps)-minute {
			u.Now += float64(st.n) / (minute * stepTime.Seconds())
			held += st.d
		}
	}
	u.Share = min(held.Seconds()/(minute*stepTime.Seconds())/float64(n.limit), 1)
	return u
}

// hot returns the use of all names that were granted, those with the longest waits first.
func (s *seen) hot() []use {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []use
	for e := s.recent.Front(); e != nil; e = e.Next() {
		if u := e.Value.(*nameSeen).use(time.Now()); slices.ContainsFunc(u.Rate, func(r float64) bool { return r > 0 }) || u.Waiting > 0 || u.Share > 0 {
			all = append(all, u)
		}
	}
	slices.SortStableFunc(all, func(a, b use) int {
		return cmp.Or(cmp.Compare(b.Waiting, a.Waiting), cmp.Compare(b.total, a.total), cmp.Compare(b.Now, a.Now), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// history returns the grants of a name, the newest first, and its use.
func (s *seen) history(name string) ([]holdRecord, use) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.old(name)
	if n == nil {
		return nil, use{Name: name}
	}
	u := n.use(time.Now())
	var all []holdRecord
	for _, sp := range slices.Backward(n.records) {
		all = append(all, *sp)
	}
	slices.SortStableFunc(all, func(a, b holdRecord) int { return cmp.Compare(b.Fence, a.Fence) })
	return all, u
}

// news returns the incidents, the newest first.
func (s *seen) news() []incident {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Clone(s.incidents)
	slices.Reverse(all)
	return all
}
