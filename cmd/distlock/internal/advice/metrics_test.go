package advice

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"github.com/distlock/distlock/internal/testkit/must"
)

// Quantiles from a histogram are right within its buckets, over all outcomes and modes of a class.
func TestAdviceOfMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	bounds := prometheus.ExponentialBuckets(.001, 1.2, 60)
	holds := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: holdMetric, Buckets: bounds}, []string{"class", "mode", "outcome"})
	waits := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: waitMetric, Buckets: bounds}, []string{"class", "mode", "outcome"})
	waits.WithLabelValues("job:*", "write", "granted").Observe(10)
	waits.WithLabelValues("job:*", "write", "refused").Observe(.001) // a try does not wait
	registry.MustRegister(holds, waits)
	random := rand.New(rand.NewPCG(3, 4))
	var truth []time.Duration
	for i := range 20_000 {
		d := time.Duration(random.ExpFloat64() * float64(time.Second))
		truth = append(truth, d)
		holds.WithLabelValues("job:*", []string{"read", "write"}[i%2], "released").Observe(d.Seconds())
	}
	holds.WithLabelValues("seldom", "exclusive", "released").Observe(1)
	holds.WithLabelValues("seldom", "exclusive", "lost").Observe(1)
	slices.Sort(truth)
	all, err := FromMetrics(strings.NewReader(textOf(t, registry)))
	if err != nil || len(all) != 2 {
		t.Fatalf("got %d classes, %v", len(all), err)
	}
	u := all[0]
	if u.Class != "job:*" || u.Held.Count() != 20_000 || u.Waited.Count() != 1 {
		t.Errorf("got %+v", u)
	}
	for _, q := range []float64{.5, .99, .999} {
		got, ok := u.Held.Quantile(q)
		want := truth[int(q*float64(len(truth)))]
		if ratio := float64(got) / float64(want); !ok || ratio < .9 || ratio > 1.1 {
			t.Errorf("quantile %g: got %v, want %v", q, got, want)
		}
	}
	if _, ok := all[1].FixedTTL(); ok || all[1].Class != "seldom" || all[1].Held.Count() != 2 {
		t.Errorf("two holds are enough: %+v", all[1])
	}
}

// textOf returns metrics as Prometheus reads them.
func textOf(t *testing.T, registry *prometheus.Registry) string {
	families := must.Get(registry.Gather())(t)
	var b strings.Builder
	for _, f := range families {
		must.Get(expfmt.MetricFamilyToText(&b, f))(t)
	}
	return b.String()
}

func TestOtherMetrics(t *testing.T) {
	for text, want := range map[string]string{
		"":                        "neither " + holdMetric,
		"up 1\n":                  "neither " + holdMetric,
		"<html>no metrics</html>": "no metrics in Prometheus's text format",
		"# TYPE distlock_hold_duration_seconds gauge\ndistlock_hold_duration_seconds 1\n": "is no histogram",
	} {
		_, err := FromMetrics(strings.NewReader(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}
