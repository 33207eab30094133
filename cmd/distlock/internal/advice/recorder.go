// Package advice derives TTLs and waits from what was seen of a backend's locks.
//
//	recorder.go    from looks at the locks to holds and waits
//	usage.go       quantiles of a class of names, and the advice
//	metrics.go     the same from metrics in Prometheus's text format
package advice

import (
	"maps"
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
	last     time.Time     // the last sample; zero before the first
	interval time.Duration // the longest between two samples
	seen     map[string]*seen
	holds    map[partyKey]*party
	waits    map[partyKey]*party
}

// seen are the holds and waits of a class that are over.
type seen struct{ held, waited samples }

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
}

// NewRecorder returns a Recorder without samples.
func NewRecorder() *Recorder {
	return &Recorder{
		classes: nameclass.New(nil), seen: map[string]*seen{},
		holds: map[partyKey]*party{}, waits: map[partyKey]*party{},
	}
}

// Add takes in one sample: all locks that had holders or waiters at an instant.
func (r *Recorder) Add(at time.Time, locks []driver.Info) {
	before := r.last
	if before.IsZero() {
		before = at
	}
	r.interval = max(r.interval, at.Sub(before))
	halfway := before.Add(at.Sub(before) / 2)
	for _, l := range locks {
		class := r.classes.Of(l.Name)
		if r.seen[class] == nil {
			r.seen[class] = &seen{}
		}
		see(r.holds, at, halfway, class, l.Name, l.Holders)
		see(r.waits, at, halfway, class, l.Name, l.Waiters)
	}
	end(r.holds, at, func(p *party) { r.seen[p.class].held.add(halfway.Sub(p.since)) })
	end(r.waits, at, func(p *party) { r.seen[p.class].waited.add(halfway.Sub(p.since)) })
	r.last = at
}

// see takes in the holders or waiters of a lock. Where the server does not tell since when, it is since half-way
// between the sample before and this one.
func see(all map[partyKey]*party, at, halfway time.Time, class, name string, parties []driver.Holder) {
	for _, h := range parties {
		key := partyKey{name, h.Owner, h.Fence}
		p := all[key]
		if p == nil {
			p = &party{class: class, since: halfway}
			all[key] = p
		}
		if h.Held >= 0 {
			p.since = at.Add(-h.Held)
		}
		p.until = at
	}
}

// end takes out the parties that a sample did not show, and reports them.
func end(all map[partyKey]*party, at time.Time, report func(*party)) {
	maps.DeleteFunc(all, func(_ partyKey, p *party) bool {
		if p.until.Equal(at) {
			return false
		}
		report(p)
		return true
	})
}

// Usages returns what was seen of each class, those with the most holds first. Holds and waits that go on are in it
// with their duration so far.
func (r *Recorder) Usages() []*Usage {
	all := map[string]*seen{}
	for class, s := range r.seen {
		all[class] = &seen{s.held.clone(), s.waited.clone()}
	}
	for _, p := range r.holds {
		all[p.class].held.add(r.last.Sub(p.since))
	}
	for _, p := range r.waits {
		all[p.class].waited.add(r.last.Sub(p.since))
	}
	var list []*Usage
	for class, s := range all {
		list = append(list, &Usage{Class: class, Held: &s.held, Waited: &s.waited, Interval: r.interval})
	}
	return sorted(list)
}
