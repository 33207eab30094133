package server

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/distlock/distlock/internal/httpwire"
)

// metrics are the metrics of one server. No label has a lock's name: names have no limit.
type metrics struct {
	registry *prometheus.Registry
	requests *prometheus.HistogramVec
	calls    *prometheus.HistogramVec
	seen     *seen
}

func newMetrics(q *quota, seen *seen) *metrics {
	// From a local Redis to a long poll.
	buckets := []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
	m := &metrics{
		registry: prometheus.NewRegistry(), seen: seen,
		requests: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "distlock_server_request_duration_seconds", Help: "Time from a request to the end of its answer.", Buckets: buckets,
		}, []string{"call", "outcome"}),
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "distlock_server_backend_duration_seconds", Help: "Time that a call of the backend took.", Buckets: buckets,
		}, []string{"call", "outcome"}),
	}
	holds := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "distlock_hold_duration_seconds", Help: "Time from a grant of this server to the end of the hold.",
		Buckets: []float64{.001, .005, .025, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 10800, 86400},
	}, []string{"mode", "outcome"})
	waits := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "distlock_wait_duration_seconds", Help: "Time from an owner's first attempt to its grant.", Buckets: buckets,
	}, []string{"mode", "outcome"})
	seen.onGrant = func(h *holdRecord) { waits.WithLabelValues(h.Mode.String(), "granted").Observe(h.Waited.Seconds()) }
	seen.onEnd = func(h *holdRecord) {
		holds.WithLabelValues(h.Mode.String(), strings.TrimPrefix(h.End, "end.")).Observe(h.Lasted().Seconds())
	}
	gauge := func(name, help string, value func() int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(value()) })
	}
	m.registry.MustRegister(m.requests, m.calls, holds, waits,
		gauge("distlock_server_waiting", "Requests that wait: acquires with a wait, watches and streams of events.", q.allStreams),
		gauge("distlock_server_holds", "Holds that this server has granted and that were not released here; one that is not renewed counts until its TTL is over.", q.allHolds),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *metrics) request(call string, outcome httpwire.Kind, took time.Duration) {
	m.requests.WithLabelValues(call, string(outcome)).Observe(took.Seconds())
}

func (m *metrics) backend(call string, err error, took time.Duration) {
	outcome := httpwire.KindOf(err)
	m.calls.WithLabelValues(call, string(outcome)).Observe(took.Seconds())
	m.seen.called(call, outcome == httpwire.Unknown, took)
}
