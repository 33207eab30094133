package bench

import (
	"math/bits"
	"slices"
	"time"
)

// figure is one number of a measurement. Its name, as printed, includes the unit.
type figure struct {
	name  string
	value float64
}

type figures []figure

func (f figures) get(name string) (float64, bool) {
	i := slices.IndexFunc(f, func(x figure) bool { return x.name == name })
	if i < 0 {
		return 0, false
	}
	return f[i].value, true
}

// longest is the only figure of which the maximum is reported, since a median would hide it.
const longest = "longest-ms"

// over combines a contender's rounds into one row: the maximum of longest, and medians of the rest.
func over(rounds []figures) figures {
	var out figures
	for _, f := range rounds[0] {
		var values []float64
		for _, r := range rounds {
			if v, ok := r.get(f.name); ok {
				values = append(values, v)
			}
		}
		if f.name == longest {
			out = append(out, figure{f.name, slices.Max(values)})
			continue
		}
		out = append(out, figure{f.name, median(values)})
	}
	return out
}

func median(values []float64) float64 {
	slices.Sort(values)
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// spread returns the greatest count divided by the smallest; +Inf if the smallest is 0.
func spread(counts []int64) float64 {
	return float64(slices.Max(counts)) / float64(slices.Min(counts))
}

// histogram counts times in buckets of about 3 %. Its own cost is negligible.
type histogram struct {
	Counts []uint32
	Max    time.Duration
}

const (
	steps   = 32 // per doubling
	buckets = 40 * steps
)

func (h *histogram) add(d time.Duration) {
	if h.Counts == nil {
		h.Counts = make([]uint32, buckets)
	}
	h.Counts[bucket(d)]++
	h.Max = max(h.Max, d)
}

func bucket(d time.Duration) int {
	v := uint64(max(d, 0))
	if v < steps {
		return int(v)
	}
	shift := bits.Len64(v) - bits.Len64(steps)
	return min((shift+1)*steps+int(v>>shift)-steps, buckets-1)
}

// middle returns the middle of a bucket.
func middle(i int) time.Duration {
	if i < steps {
		return time.Duration(i)
	}
	shift := i/steps - 1
	return time.Duration(i%steps+steps)<<shift + time.Duration(1)<<shift/2
}

func (h *histogram) merge(o *histogram) {
	if h.Counts == nil {
		h.Counts = make([]uint32, buckets)
	}
	for i, n := range o.Counts {
		h.Counts[i] += n
	}
	h.Max = max(h.Max, o.Max)
}

// quantile returns the time within which a share q of the measured times lies.
func (h *histogram) quantile(q float64) time.Duration {
	var all, seen uint64
	for _, n := range h.Counts {
		all += uint64(n)
	}
	for i, n := range h.Counts {
		seen += uint64(n)
		if n > 0 && float64(seen) >= q*float64(all) {
			return min(middle(i), h.Max)
		}
	}
	return h.Max
}
