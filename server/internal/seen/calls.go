package seen

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// Calls records the calls of the backend. It is safe for concurrent use.
type Calls struct {
	mu    sync.Mutex
	kinds map[string]*callSeen
}

// callSeen records one kind of call.
type callSeen struct {
	Count, Unknown int
	times          sample
	series         series
}

// Speed describes the latency of one kind of call.
type Speed struct {
	Call           string
	Count, Unknown int
	P50, P99, Max  time.Duration
	Mean           []float64 // milliseconds, in each step
}

// Called notes a call of the backend.
func (s *Calls) Called(call string, unknown bool, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kinds == nil {
		s.kinds = map[string]*callSeen{}
	}
	c := s.kinds[call]
	if c == nil {
		c = &callSeen{}
		s.kinds[call] = c
	}
	c.Count++
	if unknown {
		c.Unknown++
	}
	c.times.add(took)
	c.series.add(time.Now(), 1, took)
}

// Speeds returns the latency of all calls.
func (s *Calls) Speeds() []Speed {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Speed
	for call, c := range s.kinds {
		sp := Speed{Call: call, Count: c.Count, Unknown: c.Unknown, P50: c.times.quantile(.5), P99: c.times.quantile(.99), Max: c.times.quantile(1)}
		for _, st := range c.series.last(time.Now()) {
			sp.Mean = append(sp.Mean, float64(st.d.Microseconds())/1000/float64(max(st.n, 1)))
		}
		all = append(all, sp)
	}
	slices.SortFunc(all, func(a, b Speed) int { return cmp.Compare(a.Call, b.Call) })
	return all
}
