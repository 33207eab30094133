package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
	"github.com/distlock/distlock/server/internal/seen"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// metrics are the metrics of one server. No label has a lock's name, since names have no limit.
type metrics struct {
	registry *prometheus.Registry
	requests *prometheus.HistogramVec
	calls    *prometheus.HistogramVec
	seen     *seen.Log

	byClass *prometheus.Registry           // has classes of names, for those who may see all locks
	denied  func(name string, right Right) // counts a call that was refused
}

func newMetrics(q *quota, log *seen.Log) *metrics {
	// From a local Redis to a long poll.
	buckets := []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
	m := &metrics{
		registry: prometheus.NewRegistry(), seen: log,
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
	by := newClasses()
	m.denied, m.byClass = by.refused, by.registry
	log.ClassOf = by.granted.Of
	log.OnGrant = func(class string, h *seen.Record) {
		waits.WithLabelValues(h.Mode.String(), "granted").Observe(h.Waited.Seconds())
		by.taken.WithLabelValues(class).Inc()
	}
	log.OnWait = func(class string) { by.waits.WithLabelValues(class).Inc() }
	log.OnIncident = func(i seen.Incident) { by.losses.WithLabelValues(by.granted.Of(i.Name), i.Kind).Inc() }
	log.OnEnd = func(class string, h *seen.Record) {
		if h.End == "end.expired" {
			by.expired.WithLabelValues(class).Inc()
		}
		holds.WithLabelValues(h.Mode.String(), strings.TrimPrefix(h.End, "end.")).Observe(h.Lasted().Seconds())
	}
	gauge := func(name, help string, value func() int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(value()) })
	}
	m.registry.MustRegister(m.requests, m.calls, holds, waits,
		gauge("distlock_server_waiting", "Requests that stay open: acquires with a wait, watches, connections of calls and streams of events.", q.allStreams),
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
	m.seen.Called(call, outcome == httpwire.Unknown, took)
}

// callTimeout is how long one call of the backend may take. The outcome is unknown after that.
const callTimeout = 10 * time.Second

// inspection asks the backend for its locks, and measures the calls. They return errNoInspection if it can't tell.
type inspection struct {
	inspector driver.Inspector // nil: the backend has none
	metrics   *metrics
	slots     chan struct{} // has an element for each list that names runs
}

// listsAtOnce bounds the lists of clients: each may read all names of the backend.
const listsAtOnce = 4

var errNoInspection = fmt.Errorf("%w: the backend doesn't know its holders", driver.ErrUnsupported)

// List calls f with each name that begins with prefix, until f returns false.
func (i inspection) List(ctx context.Context, prefix string, f func(name string) bool) error {
	return i.call(ctx, "list", func(ctx context.Context) error { return i.inspector.List(ctx, prefix, f) })
}

// names returns, in their order, the first names behind after that a client may see: limit of them, and one more if there are more.
func (i inspection) names(ctx context.Context, who *Identity, prefix, after string, limit int) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	select {
	case i.slots <- struct{}{}:
		defer func() { <-i.slots }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	names := []string{}
	first := func() {
		slices.Sort(names)
		names = names[:min(len(names), limit+1)]
	}
	err := i.List(ctx, prefix, func(name string) bool {
		if name > after && who.May(See, name) {
			if names = append(names, name); len(names) >= 4*(limit+1) {
				first()
			}
		}
		return true
	})
	first()
	return names, err
}

// Inspect describes a lock.
func (i inspection) Inspect(ctx context.Context, name string) (info driver.Info, err error) {
	err = i.call(ctx, "inspect", func(ctx context.Context) error {
		info, err = i.inspector.Inspect(ctx, name)
		return err
	})
	return info, err
}

func (i inspection) call(ctx context.Context, op string, f func(context.Context) error) error {
	if i.inspector == nil {
		return errNoInspection
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	began := time.Now()
	err := f(ctx)
	i.metrics.backend(op, err, time.Since(began))
	if errors.Is(err, driver.ErrSkip) {
		return errNoInspection
	}
	return err
}
