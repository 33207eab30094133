package advice

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Usage sums up the holds and waits of the locks of a class, which share a pattern of names.
type Usage struct {
	Class  string
	Held   Durations
	Waited Durations
	// Interval is the time between two samples: what is shorter is known to be shorter, and not more.
	Interval time.Duration
}

// sorted puts classes with many holds first.
func sorted(all []*Usage) []*Usage {
	slices.SortFunc(all, func(a, b *Usage) int {
		return cmp.Or(cmp.Compare(b.Held.Count(), a.Held.Count()), cmp.Compare(a.Class, b.Class))
	})
	return all
}

// Durations are durations that were seen.
type Durations interface {
	// Count returns how many were seen.
	Count() int
	// Quantile returns a quantile from 0 to 1. It reports false if fewer than 10/(1-q) durations were seen: then
	// the quantile would be the luck of a few.
	Quantile(q float64) (time.Duration, bool)
	// Max returns the longest, or a bound of it; 0 if there is none.
	Max() time.Duration
}

// enough reports whether n durations have a quantile.
func enough(n int, q float64) bool { return float64(n) >= 10/(1-q)-1e-6 }

// FixedTTL returns the TTL that leases without renewal need: twice the 99.9th percentile of the holds, and
// a quarter more than the longest. It reports false if too few holds were seen.
func (u *Usage) FixedTTL() (time.Duration, bool) {
	p999, ok := u.Held.Quantile(.999)
	return max(2*p999, u.Held.Max()*5/4), ok
}

// Wait returns for how long it is worth waiting: twice the 99th percentile of the waits. It reports false if
// too few waits were seen.
func (u *Usage) Wait() (time.Duration, bool) {
	p99, ok := u.Waited.Quantile(.99)
	return 2 * p99, ok
}

// samples are Durations of which each was seen.
type samples struct {
	all    []time.Duration
	sorted bool
}

func (s *samples) add(d time.Duration) { s.all, s.sorted = append(s.all, max(d, 0)), false }

func (s *samples) clone() samples { return samples{all: slices.Clone(s.all), sorted: s.sorted} }

func (s *samples) Count() int { return len(s.all) }

func (s *samples) Max() time.Duration {
	if len(s.all) == 0 {
		return 0
	}
	return slices.Max(s.all)
}

func (s *samples) Quantile(q float64) (time.Duration, bool) {
	n := len(s.all)
	if !enough(n, q) {
		return 0, false
	}
	if !s.sorted {
		slices.Sort(s.all)
		s.sorted = true
	}
	return s.all[min(int(math.Ceil(q*float64(n)))-1, n-1)], true
}
