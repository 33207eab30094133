// Package seen records the calls to a server since its start, for its page and its metrics. No lock depends on it: other
// servers before the same backend see other calls.
package seen

import (
	"cmp"
	"container/list"
	"fmt"
	"maps"
	"reflect"
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

// Log is what a server has seen. It is safe for concurrent use, and its size is bounded.
type Log struct {
	Calls

	// Began is when the server started.
	Began time.Time

	// ClassOf returns the class of a name that is used.
	ClassOf func(name string) string

	// OnGrant and OnEnd are called for each grant of a name of a class and its end, OnWait when an Owner begins to wait for it,
	// and OnIncident for each incident, while mu is locked.
	OnGrant, OnEnd func(class string, r *Record)
	OnWait         func(class string)
	OnIncident     func(Incident)

	mu        sync.Mutex
	names     map[string]*list.Element // of *nameSeen
	recent    list.List                // the name used last is the first
	incidents []Incident               // the newest is the last
	count     int                      // of all incidents
	meta      map[string]string        // of the last grant
	who       string                   // that it describes
}

// nameSeen records the calls for one name.
type nameSeen struct {
	log     *Log
	name    string
	class   string // empty: not known yet
	limit   int
	grants  series    // and for how long the lock was held
	held    time.Time // since when it has been; it isn't while holds is empty
	waits   sample
	waiting map[string]waitSpan // of each Owner that waits
	holds   map[string]*Record  // by Owner
	records []*Record           // the newest is the last
	highest uint64              // fence of the records
}

// classOf returns the class of the name.
func (n *nameSeen) classOf() string {
	if n.class == "" {
		n.class = n.log.ClassOf(n.name)
	}
	return n.class
}

// waitSpan is when an Owner that waits made its first attempt, and its last.
type waitSpan struct{ first, last time.Time }

// Record is one grant, from its beginning to its end.
type Record struct {
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

// Incident is a loss, or a call after which it is not known whether a hold lives.
type Incident struct {
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
func (i Incident) ID() string { return fmt.Sprintf("i%d", i.Number) }

// Lasted returns how long a record took that has ended.
func (sp Record) Lasted() time.Duration { return sp.Ended.Sub(sp.Began) }

// New returns an empty Log.
func New() *Log {
	ignore := func(string, *Record) {}
	same := func(name string) string { return name }
	return &Log{Began: time.Now(), ClassOf: same, OnGrant: ignore, OnEnd: ignore, OnWait: func(string) {}, OnIncident: func(Incident) {}, names: map[string]*list.Element{}}
}

// name returns what is known of a name, which is new if it was forgotten. The caller has locked mu.
func (s *Log) name(name string) *nameSeen {
	if e := s.names[name]; e != nil {
		s.recent.MoveToFront(e)
		return e.Value.(*nameSeen)
	}
	n := &nameSeen{log: s, name: name, limit: 1, waiting: map[string]waitSpan{}, holds: map[string]*Record{}}
	s.names[name] = s.recent.PushFront(n)
	if s.recent.Len() > mostNames {
		delete(s.names, s.recent.Remove(s.recent.Back()).(*nameSeen).name)
	}
	return n
}

// old returns what is known of a name, or nil. The caller has locked mu.
func (s *Log) old(name string) *nameSeen {
	if e := s.names[name]; e != nil {
		return e.Value.(*nameSeen)
	}
	return nil
}

// Refused notes an attempt of an Owner that waits.
func (s *Log) Refused(h driver.Hold, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.name(h.Name)
	w, known := n.waiting[h.Owner]
	if !known {
		makeRoom(n.waiting)
		w.first = at
		s.OnWait(n.classOf())
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

// Granted notes a grant. The request that led to it arrived at an instant, and the backend was called at another.
func (s *Log) Granted(r driver.Request, g driver.Grant, arrived, called time.Time) {
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
	sp := &Record{
		Fence: g.Fence, Last: g.Last(), Mode: r.Mode, Who: s.describe(r.Meta), Began: called, Waited: max(called.Sub(arrived), 0),
		ttl: g.TTL, until: called.Add(g.TTL),
	}
	s.OnGrant(n.classOf(), sp)
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
func (n *nameSeen) keep(sp *Record) {
	if sp.Fence != 0 && sp.Fence <= n.highest {
		if i := slices.IndexFunc(n.records, func(o *Record) bool { return o.Fence == sp.Fence }); i >= 0 {
			n.records[i] = sp // it was seen at the backend first
			return
		}
	}
	n.highest = max(n.highest, sp.Fence)
	n.records = append(n.records, sp)
	if len(n.records) > mostSpells {
		n.records = slices.Delete(n.records, 0, 1)
	}
}

// end notes that a hold has ended.
func (n *nameSeen) end(owner string, sp *Record, at time.Time, how string) {
	sp.Ended, sp.End = at, how
	delete(n.holds, owner)
	n.log.OnEnd(n.classOf(), sp)
	switch {
	case n.limit > 1: // each permit counts
		n.grants.span(sp.Began, at)
	case len(n.holds) == 0:
		n.grants.span(n.held, at)
	}
}

// Renewed notes that a hold lives on.
func (s *Log) Renewed(h driver.Hold, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.old(h.Name); n != nil && n.holds[h.Owner] != nil {
		s.name(h.Name) // so that it is not forgotten
		n.holds[h.Owner].ttl, n.holds[h.Owner].until = h.TTL, at.Add(h.TTL)
	}
}

// Released notes the release of a hold, or that an Owner waits no longer.
func (s *Log) Released(h driver.Hold) { s.over(h, "end.released") }

// over notes the end of a hold, and returns what is known of it.
func (s *Log) over(h driver.Hold, how string) Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.old(h.Name)
	if n == nil {
		return Record{}
	}
	delete(n.waiting, h.Owner)
	sp := n.holds[h.Owner]
	if sp == nil {
		return Record{}
	}
	n.end(h.Owner, sp, time.Now(), how)
	return *sp
}

// Lost notes that a hold was lost.
func (s *Log) Lost(h driver.Hold) {
	sp := s.over(h, "end.lost")
	s.report(Incident{Kind: "lost", Name: h.Name, Fence: sp.Fence, Who: sp.Who, owner: h.Owner})
}

// Broken notes that a lock was unlocked by force, and by which identity.
func (s *Log) Broken(h driver.Hold, fence uint64, by string) {
	sp := s.over(h, "end.broken")
	s.report(Incident{Kind: "broken", Name: h.Name, Fence: cmp.Or(sp.Fence, fence), Who: sp.Who, By: by, owner: h.Owner})
}

// UnknownRenewal notes a call for a hold whose outcome is not known.
func (s *Log) UnknownRenewal(h driver.Hold, err error) {
	i := Incident{Kind: "unknown", Name: h.Name, owner: h.Owner, Detail: Short(strings.ReplaceAll(err.Error(), h.Owner, "…"))}
	s.mu.Lock()
	if n := s.old(h.Name); n != nil && n.holds[h.Owner] != nil {
		i.Fence, i.Who = n.holds[h.Owner].Fence, n.holds[h.Owner].Who
	}
	s.mu.Unlock()
	s.report(i)
}

// report keeps an incident. The loss of a hold is one, however often it is noticed.
func (s *Log) report(i Incident) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := func(o Incident) bool { return o.owner == i.owner && o.Kind != "unknown" }
	if i.Kind == "lost" && slices.ContainsFunc(s.incidents, known) {
		return
	}
	s.count++
	i.At, i.Number = time.Now(), s.count
	s.OnIncident(i)
	s.incidents = append(s.incidents, i)
	if len(s.incidents) > mostIncidents {
		s.incidents = slices.Delete(s.incidents, 0, 1)
	}
}

// Holder is one that the backend names.
type Holder struct {
	Fence uint64
	Mode  driver.Mode
	Who   string
	Since time.Time // zero: not known
}

// Observed adds the holders that the backend names to the history: other servers may have granted them. No name is forgotten for
// one that is only looked at.
func (s *Log) Observed(name string, holders []Holder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.old(name)
	switch {
	case n != nil:
	case len(holders) == 0 || s.recent.Len() >= mostNames:
		return
	default:
		n = s.name(name)
		s.recent.MoveToBack(s.names[name])
	}
	for _, h := range holders {
		known := func(sp *Record) bool { return sp.Fence <= h.Fence && h.Fence <= sp.Last }
		if h.Fence != 0 && !slices.ContainsFunc(n.records, known) {
			n.keep(&Record{Fence: h.Fence, Last: h.Fence, Mode: h.Mode, Who: h.Who, Began: cmp.Or(h.Since, time.Now()), foreign: true})
		}
	}
	for _, sp := range n.records {
		there := func(h Holder) bool { return sp.Fence <= h.Fence && h.Fence <= sp.Last }
		if sp.foreign && sp.Ended.IsZero() && !slices.ContainsFunc(holders, there) {
			sp.Ended, sp.End = time.Now(), "end.gone"
		}
	}
}

// Owner returns who holds what was granted with a fence here, or "" if that is not known.
func (s *Log) Owner(name string, fence uint64) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.old(name); n != nil {
		for owner, r := range n.holds {
			if r.Fence <= fence && fence <= r.Last {
				return owner
			}
		}
	}
	return ""
}

// TTL returns the TTL of a hold, or 0 if it is not known.
func (s *Log) TTL(name, owner string) time.Duration {
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

// Expire ends the holds of all names whose TTL is over.
func (s *Log) Expire(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for e := s.recent.Front(); e != nil; e = e.Next() {
		e.Value.(*nameSeen).expire(now)
	}
}

// Use describes how much a name is used.
type Use struct {
	Name     string
	Rate     []float64 // grants a second, in each step
	Now      float64   // grants a second, over the last minute
	P50, P99 time.Duration
	Share    float64 // of the last minute in which it was held
	Waiting  int
	total    time.Duration // of the last waits
}

// use returns how much a name was used. The caller has locked mu.
func (n *nameSeen) use(now time.Time) Use {
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
	u := Use{Name: n.name, P50: n.waits.quantile(.5), P99: n.waits.quantile(.99), Waiting: len(n.waiting), total: n.waits.sum()}
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

// Hot returns the use of all names that were granted, those with the longest waits first.
func (s *Log) Hot() []Use {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Use
	for e := s.recent.Front(); e != nil; e = e.Next() {
		if u := e.Value.(*nameSeen).use(time.Now()); slices.ContainsFunc(u.Rate, func(r float64) bool { return r > 0 }) || u.Waiting > 0 || u.Share > 0 {
			all = append(all, u)
		}
	}
	slices.SortStableFunc(all, func(a, b Use) int {
		return cmp.Or(cmp.Compare(b.Waiting, a.Waiting), cmp.Compare(b.total, a.total), cmp.Compare(b.Now, a.Now), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// History returns the grants of a name, the newest first, and its use.
func (s *Log) History(name string) ([]Record, Use) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.old(name)
	if n == nil {
		return nil, Use{Name: name}
	}
	u := n.use(time.Now())
	var all []Record
	for _, sp := range slices.Backward(n.records) {
		all = append(all, *sp)
	}
	slices.SortStableFunc(all, func(a, b Record) int { return cmp.Compare(b.Fence, a.Fence) })
	return all, u
}

// News returns the incidents, the newest first.
func (s *Log) News() []Incident {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Clone(s.incidents)
	slices.Reverse(all)
	return all
}

// Losses returns how many incidents there were, also those that are not kept any more.
func (s *Log) Losses() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count
}

// mostText is the maximum of bytes of a description.
const mostText = 200

// Describe names a holder by its metadata.
func Describe(meta map[string]string) string {
	who := meta["program"]
	if pid := meta["pid"]; pid != "" {
		who += " pid " + pid
	}
	if host := meta["host"]; host != "" {
		who += " @ " + host
	}
	return Short(strings.TrimSpace(who))
}

// describe is Describe, which most often describes the same process as before. The caller has locked mu.
func (s *Log) describe(meta map[string]string) string {
	if same := reflect.ValueOf(meta).Pointer() == reflect.ValueOf(s.meta).Pointer(); !same {
		s.meta, s.who = meta, Describe(meta)
	}
	return s.who
}

// Short cuts a text that is too long to be shown.
func Short(s string) string {
	if len(s) > mostText {
		s = strings.ToValidUTF8(s[:mostText], "") + "…"
	}
	return s
}
