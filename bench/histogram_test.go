package bench

import (
	"math/bits"
	"time"
)

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
