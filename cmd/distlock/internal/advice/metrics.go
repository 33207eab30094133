package advice

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// The metrics that the advice rests on, as Prometheus names them.
const (
	holdMetric   = "distlock_hold_duration_seconds"
	waitMetric   = "distlock_wait_duration_seconds"
	classLabel   = "class"
	outcomeLabel = "outcome"
)

// FromMetrics returns what metrics in Prometheus's text format say of each class, those with the most holds first.
// It is an error if they have no histogram of holds or waits.
func FromMetrics(text io.Reader) ([]*Usage, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(text)
	if err != nil {
		return nil, fmt.Errorf("no metrics in Prometheus's text format: %w", err)
	}
	if families[holdMetric] == nil && families[waitMetric] == nil {
		return nil, fmt.Errorf("neither %s nor %s is among the metrics", holdMetric, waitMetric)
	}
	all := map[string]*Usage{}
	usage := func(m *dto.Metric) *Usage {
		class := cmp.Or(label(m, classLabel), "*")
		if all[class] == nil {
			all[class] = &Usage{Class: class, Held: &histogram{}, Waited: &histogram{}}
		}
		return all[class]
	}
	for _, name := range []string{holdMetric, waitMetric} {
		for _, m := range families[name].GetMetric() {
			if len(m.GetHistogram().GetBucket()) == 0 {
				return nil, fmt.Errorf("%s is no histogram with buckets", name)
			}
			d := usage(m).Held
			if name == waitMetric {
				d = usage(m).Waited
				if label(m, outcomeLabel) == "refused" {
					continue // a try does not wait
				}
			}
			d.(*histogram).add(m.GetHistogram())
		}
	}
	var list []*Usage
	for _, u := range all {
		list = append(list, u)
	}
	return sorted(list), nil
}

// label returns a label of a metric, or "".
func label(m *dto.Metric, name string) string {
	for _, l := range m.Label {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

// histogram are Durations in buckets. A quantile is interpolated within its bucket.
type histogram struct {
	count   uint64
	bounds  []float64 // seconds, ascending
	buckets []uint64  // of each bound, cumulative
}

// add adds another histogram, with the same bounds: they differ in labels that don't matter here.
func (h *histogram) add(o *dto.Histogram) {
	h.count += o.GetSampleCount()
	for _, b := range o.Bucket {
		i, there := slices.BinarySearch(h.bounds, b.GetUpperBound())
		if !there {
			h.bounds = slices.Insert(h.bounds, i, b.GetUpperBound())
			h.buckets = slices.Insert(h.buckets, i, 0)
		}
		h.buckets[i] += b.GetCumulativeCount()
	}
}

func (h *histogram) Count() int { return int(h.count) }

func (h *histogram) Max() time.Duration {
	for i, n := range h.buckets {
		if n == h.count && h.count > 0 {
			return h.bound(i)
		}
	}
	return h.bound(len(h.bounds) - 1)
}

func (h *histogram) Quantile(q float64) (time.Duration, bool) {
	if !enough(h.Count(), q) {
		return 0, false
	}
	rank := q * float64(h.count)
	for i, n := range h.buckets {
		if float64(n) < rank {
			continue
		}
		low, before := time.Duration(0), uint64(0)
		if i > 0 {
			low, before = h.bound(i-1), h.buckets[i-1]
		}
		part := (rank - float64(before)) / float64(n-before)
		return low + time.Duration(part*float64(h.bound(i)-low)), true
	}
	return h.Max(), true
}

// bound returns a bound, or the greatest finite one below it.
func (h *histogram) bound(i int) time.Duration {
	for i >= 0 && math.IsInf(h.bounds[i], 1) {
		i--
	}
	if i < 0 {
		return 0
	}
	return time.Duration(h.bounds[i] * float64(time.Second))
}
