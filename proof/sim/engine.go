// Package sim predicts what a fleet of lock clients does, at sizes that no test machine can run: a
// discrete-event simulation, fed with the measured costs of single operations. One goroutine, a fixed
// seed: the same result each time.
//
// Times are in microseconds.
package sim

import (
	"math/rand/v2"
	"slices"
)

// Units of time.
const (
	Millisecond = 1000.
	Second      = 1000 * Millisecond
)

// Sim is a clock and the events to come.
type Sim struct {
	*rand.Rand
	Now    float64
	events []event
	count  uint64
}

// event is a function to be called. Of two events at one time the older one comes first.
type event struct {
	at float64
	n  uint64
	do func()
}

// New returns a Sim at time 0.
func New(seed uint64) *Sim { return &Sim{Rand: rand.New(rand.NewPCG(seed, 1))} }

// After calls f once d has passed.
func (s *Sim) After(d float64, f func()) {
	s.count++
	s.events = append(s.events, event{s.Now + d, s.count, f})
	for i := len(s.events) - 1; i > 0 && s.before(i, (i-1)/2); i = (i - 1) / 2 {
		s.swap(i, (i-1)/2)
	}
}

// Run runs all events until a time, which is the present afterwards.
func (s *Sim) Run(until float64) {
	for len(s.events) > 0 && s.events[0].at <= until {
		e := s.pop()
		s.Now = e.at
		e.do()
	}
	s.Now = until
}

func (s *Sim) pop() event {
	e, last := s.events[0], len(s.events)-1
	s.events[0] = s.events[last]
	s.events[last] = event{}
	s.events = s.events[:last]
	for i, child := 0, 1; child < last; i, child = child, 2*child+1 {
		if child+1 < last && s.before(child+1, child) {
			child++
		}
		if !s.before(child, i) {
			break
		}
		s.swap(i, child)
	}
	return e
}

func (s *Sim) before(i, j int) bool {
	a, b := &s.events[i], &s.events[j]
	return a.at < b.at || a.at == b.at && a.n < b.n
}

func (s *Sim) swap(i, j int) { s.events[i], s.events[j] = s.events[j], s.events[i] }

// Arrivals calls f at random, rate times a second on average.
func (s *Sim) Arrivals(rate float64, f func()) {
	var next func()
	next = func() {
		s.After(s.ExpFloat64()*Second/rate, func() { f(); next() })
	}
	next()
}

// Jitter returns a random time between d/2 and 3d/2, as internal/wait does.
func (s *Sim) Jitter(d float64) float64 { return d/2 + s.Float64()*d }

// Station serves jobs one after the other, in the order of their arrival, as Redis does.
type Station struct {
	*Sim
	Busy    float64 // time that all jobs take that have begun
	serving bool
	jobs    []job // that wait
}

// job takes a time that is known when it begins.
type job struct {
	begin func() (service float64)
	done  func()
}

// Do calls done once the job has been served.
func (s *Station) Do(service float64, done func()) {
	s.Serve(func() float64 { return service }, done)
}

// Serve is Do for a job that says when it begins how long it takes.
func (s *Station) Serve(begin func() (service float64), done func()) {
	s.jobs = append(s.jobs, job{begin, done})
	if !s.serving {
		s.next()
	}
}

func (s *Station) next() {
	if s.serving = len(s.jobs) > 0; !s.serving {
		return
	}
	j := s.jobs[0]
	s.jobs = s.jobs[1:]
	service := j.begin()
	s.Busy += service
	s.After(service, func() {
		s.next()
		j.done()
	})
}

// Times are measured times.
type Times []float64

// Quantile returns the time within which a share q of the times lies.
func (t Times) Quantile(q float64) float64 {
	if len(t) == 0 {
		return 0
	}
	slices.Sort(t)
	return t[min(int(q*float64(len(t))), len(t)-1)]
}

// Mean returns their average.
func (t Times) Mean() float64 {
	sum := 0.
	for _, v := range t {
		sum += v
	}
	return sum / float64(max(len(t), 1))
}
