package seen

import (
	"slices"
	"time"
)

const (
	stepTime = 10 * time.Second
	steps    = 60 // of a series: ten minutes
	minute   = 6  // steps
)

// series counts in steps of time. It keeps the last steps in which there was something to count.
type series struct{ steps []step }

type step struct {
	at int64 // in steps since 1970
	n  int
	d  time.Duration
}

func stepOf(t time.Time) int64 { return t.UnixNano() / int64(stepTime) }

// add counts in the step of an instant.
func (s *series) add(t time.Time, n int, d time.Duration) {
	at := stepOf(t)
	i := len(s.steps)
	for i > 0 && s.steps[i-1].at > at {
		i--
	}
	if i > 0 && s.steps[i-1].at == at {
		s.steps[i-1].n += n
		s.steps[i-1].d += d
		return
	}
	s.steps = slices.Insert(s.steps, i, step{at, n, d})
	if len(s.steps) > steps {
		s.steps = slices.Delete(s.steps, 0, len(s.steps)-steps)
	}
}

// span adds the time from one instant to another to the steps in which it lies.
func (s *series) span(from, to time.Time) {
	if earliest := to.Add(-steps * stepTime); from.Before(earliest) {
		from = earliest
	}
	for from.Before(to) {
		end := time.Unix(0, (stepOf(from)+1)*int64(stepTime))
		if end.After(to) {
			end = to
		}
		s.add(from, 0, end.Sub(from))
		from = end
	}
}

// last returns the steps before now, and the one that is not over.
func (s *series) last(now time.Time) (all [steps]step) {
	first := stepOf(now) - steps + 1
	for _, st := range s.steps {
		if i := st.at - first; i >= 0 && i < steps {
			all[i] = st
		}
	}
	return all
}

const sampleSize = 256

// sample keeps the last durations of a row.
type sample struct {
	all  []time.Duration
	next int
}

func (s *sample) add(d time.Duration) {
	if len(s.all) < sampleSize {
		s.all = append(s.all, d)
		return
	}
	s.all[s.next] = d
	s.next = (s.next + 1) % sampleSize
}

// quantile returns the smallest duration that a share of all do not exceed; 0 if there is none.
func (s *sample) quantile(share float64) time.Duration {
	if len(s.all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s.all))
	i := int(share*float64(len(sorted))+.999999) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

func (s *sample) sum() (sum time.Duration) {
	for _, d := range s.all {
		sum += d
	}
	return sum
}
