// Package advice derives TTLs and waits from what was seen of a backend's locks.
//
//	recorder.go    from looks at the locks to holds and waits
//	usage.go       quantiles of a class of names, and the advice
//	metrics.go     the same from metrics in Prometheus's text format
package advice

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/nameclass"
)

// Recorder puts samples of locks together to holds and waits. It is for one goroutine.
//
// A hold is seen only if a sample falls into it, so holds that are shorter than the time between two samples are
// counted too rarely, and quantiles err on the long side.
type Recorder struct {
	classes  *nameclass.Classes
	last     time.Time // the last sample
	samples  int
	interval time.Duration // the longest between two samples
	usages   map[string]*usage
	names    map[string]*nameUse
	holds    map[partyKey]*party
	waits    map[partyKey]*party
}

// usage counts the events of a class.
type usage struct {
	held, waited samples
	lost         int           // holds whose life was over when they were gone
	renewed      bool          // a hold was
	ttl          time.Duration // the longest that was left
}

// nameUse is how busy a name was.
type nameUse struct {
	class string
	busy  float64 // the sum over all samples of the part of its permits that was held
	now   int     // holders
	wait  int     // waiters
	seen  int     // in which sample
}

// partyKey identifies a hold, or a place in the queue.
type partyKey struct {
	name, owner string
	fence       uint64
}

// party is a hold or a wait that goes on.
type party struct {
	class string
	since time.Time
	until time.Time // when it was seen last
	left  time.Time // its end, if it is not renewed; zero: not known
}

// NewRecorder returns a Recorder without samples.
func NewRecorder() *Recorder {
	return &Recorder{
		classes: nameclass.New(nil), usages: map[string]*usage{}, names: map[string]*nameUse{},
		holds: map[partyKey]*party{}, waits: map[partyKey]*party{},
	}
}

// Add takes in one sample: all locks that had holders or waiters at an instant.
func (r *Recorder) Add(at time.Time, locks []driver.Info) {
	if r.samples > 0 {
		r.interval = max(r.interval, at.Sub(r.last))
	}
	r.samples++
	for _, l := range locks {
		n := r.name(l.Name)
		n.seen, n.now, n.wait = r.samples, len(l.Holders), max(l.WaiterCount, len(l.Waiters))
		n.busy += float64(len(l.Holders)) / float64(max(l.Limit, permitsOf(l)))
		for _, h := range l.Holders {
			r.hold(at, n.class, l.Name, h)
		}
		for _, h := range l.Waiters {
			r.see(r.waits, at, n.class, l.Name, h)
		}
	}
	for _, n := range r.names {
		if n.seen != r.samples {
			n.now, n.wait = 0, 0
		}
	}
	end(r.holds, at, r.last, func(p *party, d time.Duration) {
		u := r.usages[p.class]
		u.held.add(d)
		if !p.left.IsZero() && !p.left.After(at) {
			u.lost++
		}
	})
	end(r.waits, at, r.last, func(p *party, d time.Duration) { r.usages[p.class].waited.add(d) })
	r.last = at
}

// permitsOf returns how many can hold a lock that is not counted: one, or all of its readers.
func permitsOf(l driver.Info) int { return max(len(l.Holders), 1) }

func (r *Recorder) name(name string) *nameUse {
	n := r.names[name]
	if n == nil {
		n = &nameUse{class: r.classes.Of(name)}
		r.names[name] = n
		if r.usages[n.class] == nil {
			r.usages[n.class] = &usage{}
		}
	}
	return n
}

// hold takes in a holder.
func (r *Recorder) hold(at time.Time, class, name string, h driver.Holder) {
	p := r.see(r.holds, at, class, name, h)
	if h.Left < 0 {
		return
	}
	u, left := r.usages[class], at.Add(h.Left)
	u.ttl = max(u.ttl, h.Left)
	// Clocks and round trips move the instant a little; a renewal moves it by much of the TTL.
	if !p.left.IsZero() && left.Sub(p.left) > u.ttl/10 {
		u.renewed = true
	}
	p.left = left
}

// see takes in a holder or a waiter.
func (r *Recorder) see(all map[partyKey]*party, at time.Time, class, name string, h driver.Holder) *party {
	key := partyKey{name, h.Owner, h.Fence}
	p := all[key]
	if p == nil {
		p = &party{class: class, since: at}
		if r.samples > 1 {
			p.since = r.last.Add(at.Sub(r.last) / 2)
		}
		all[key] = p
	}
	if h.Held >= 0 {
		p.since = at.Add(-h.Held)
	}
	p.until = at
	return p
}

// end takes out the parties that a sample did not show, and reports how long they lasted: until half-way
// between the sample before and this one.
func end(all map[partyKey]*party, at, before time.Time, report func(p *party, d time.Duration)) {
	maps.DeleteFunc(all, func(_ partyKey, p *party) bool {
		if p.until.Equal(at) {
			return false
		}
		report(p, before.Add(at.Sub(before)/2).Sub(p.since))
		return true
	})
}

// Usages returns what was seen of each class, the busiest first. Holds and waits that go on are in it with their
// duration so far.
func (r *Recorder) Usages() []*Usage {
	all, held, waited := map[string]*Usage{}, map[string]*samples{}, map[string]*samples{}
	for class, u := range r.usages {
		held[class], waited[class] = u.held.clone(), u.waited.clone()
		all[class] = &Usage{Class: class, Held: held[class], Waited: waited[class], Lost: u.lost, Renewed: u.renewed, TTL: u.ttl, Interval: r.interval}
		if r.samples < 2 || u.ttl < 4*r.interval { // a hold that was renewed may be gone by the next sample, and its life over
			all[class].Lost = -1
		}
	}
	for _, p := range r.holds {
		held[p.class].add(r.last.Sub(p.since))
	}
	for _, p := range r.waits {
		waited[p.class].add(r.last.Sub(p.since))
	}
	for _, n := range r.names {
		u := all[n.class]
		u.Names++
		u.Now += n.now
		u.Waiting += n.wait
		u.Busy = max(u.Busy, n.busy/float64(r.samples))
	}
	return slices.SortedFunc(maps.Values(all), func(a, b *Usage) int {
		return cmp.Or(cmp.Compare(b.Busy, a.Busy), cmp.Compare(a.Class, b.Class))
	})
}
