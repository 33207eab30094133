// Package distlockotel exports what happens to locks as metrics and traces of OpenTelemetry.
//
//	observer, err := distlockotel.New(distlockotel.Options{})
//	locks, err := distlock.Open(ctx, url, &distlock.Options{Observer: observer})
//
// # Metrics
//
//	distlock.wait.duration   histogram, s   class, mode, outcome: granted, handed_off, refused, gave_up
//	distlock.hold.duration   histogram, s   class, mode, outcome: released, lost
//	distlock.waiting         updowncounter  class, mode
//	distlock.held            updowncounter  class, mode
//	distlock.losses          counter        reason: fact, deadline, max_hold, broken
//	distlock.renewals        counter        outcome: renewed, unknown, lost
//	distlock.lease.left      histogram, s   the time to the deadline when a renewal was answered: it falls before anything is lost
//
// No attribute has a lock's name, of which there may be millions: a collector that keeps a limited number of attribute sets
// would drop all attributes. The class of a name has stars for its numbers and UUIDs, as in "order:*", and there are 200
// classes at most. Losses have no class, so that an alert on them never depends on that. Broken is a lock
// that this client unlocked by force; if another program did it, the backend has forgotten the lock, which is a fact.
// Waits and holds whose trace is sampled are exemplars: a dashboard can go from a slow one to its trace.
//
// # Traces
//
// A wait and a hold are a span each, which is made when it is over and begins in the past. The span of a wait is
// a child of the caller's span. The span of a hold is a child of Unlock's caller's span, or of Lock's if the lock was lost. A span
// has the lock's name and its fence. A wait that was refused or given up has a link to the span in which the holder in its
// way got the lock, if that is of this process. An Owner is never exported.
package distlockotel

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/internal/nameclass"
	"github.com/distlock/distlock/internal/renew"
)

const scope = "github.com/distlock/distlock/distlockotel"

// Options configure an observer. The zero value takes the global providers.
type Options struct {
	MeterProvider  metric.MeterProvider
	TracerProvider trace.TracerProvider

	// Class returns the class of a name. Default: the name with a star in place of each number and UUID. Names
	// after the 200th class have the class "other".
	Class func(name string) string
}

// New returns an observer, which any number of clients may share. To use others beside it, join them with
// distlock.Observers. It returns an error if the MeterProvider refuses an instrument.
func New(o Options) (*distlock.Observer, error) {
	if o.MeterProvider == nil {
		o.MeterProvider = otel.GetMeterProvider()
	}
	if o.TracerProvider == nil {
		o.TracerProvider = otel.GetTracerProvider()
	}
	x := &exporter{classes: nameclass.New(o.Class), tracer: o.TracerProvider.Tracer(scope), grants: map[grant]trace.SpanContext{}}
	if err := x.instruments(o.MeterProvider.Meter(scope)); err != nil {
		return nil, err
	}
	return &distlock.Observer{
		Waiting: x.waits, GaveUp: x.gaveUp, Refused: x.refused, Granted: x.granted, HandedOff: x.handedOff,
		Renewed: x.renewed, Unanswered: x.unanswered, Lost: x.lost, Released: x.released, Downgraded: x.downgraded,
	}, nil
}

// exporter has the instruments. It is safe for concurrent use.
type exporter struct {
	classes *nameclass.Classes
	tracer  trace.Tracer

	wait, hold, left metric.Float64Histogram
	waiting, held    metric.Int64UpDownCounter
	losses, renewals metric.Int64Counter

	mu     sync.Mutex
	grants map[grant]trace.SpanContext // of the locks that are held
}

// grant identifies a lease of this process.
type grant struct {
	name  string
	fence uint64
}

// bounds are the bounds of the histograms, in seconds: from a hand-off to a long job.
var bounds = []float64{.0001, .001, .005, .025, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 10800, 86400}

func (exp *exporter) instruments(m metric.Meter) error {
	var errs [7]error
	exp.wait, errs[0] = m.Float64Histogram("distlock.wait.duration", metric.WithUnit("s"),
		metric.WithDescription("Time from the call of Lock to its end."), metric.WithExplicitBucketBoundaries(bounds...))
	exp.hold, errs[1] = m.Float64Histogram("distlock.hold.duration", metric.WithUnit("s"),
		metric.WithDescription("Time for which a lock was held."), metric.WithExplicitBucketBoundaries(bounds...))
	exp.left, errs[2] = m.Float64Histogram("distlock.lease.left", metric.WithUnit("s"),
		metric.WithDescription("Time to the lease's deadline when a renewal was answered."), metric.WithExplicitBucketBoundaries(bounds...))
	exp.waiting, errs[3] = m.Int64UpDownCounter("distlock.waiting", metric.WithUnit("{caller}"), metric.WithDescription("Callers that wait for a lock."))
	exp.held, errs[4] = m.Int64UpDownCounter("distlock.held", metric.WithUnit("{lock}"), metric.WithDescription("Locks that are held."))
	exp.losses, errs[5] = m.Int64Counter("distlock.losses", metric.WithUnit("{lock}"), metric.WithDescription("Locks that were lost while they were held."))
	exp.renewals, errs[6] = m.Int64Counter("distlock.renewals", metric.WithUnit("{renewal}"), metric.WithDescription("Renewals of a lock, by their outcome."))
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	// A series that begins with its first event shows no increase.
	for _, reason := range []string{"fact", "deadline", "max_hold", "broken"} {
		exp.losses.Add(context.Background(), 0, metric.WithAttributes(attribute.String("reason", reason)))
	}
	for _, outcome := range []string{"renewed", "unknown", "lost"} {
		exp.renewals.Add(context.Background(), 0, metric.WithAttributes(attribute.String("outcome", outcome)))
	}
	return nil
}

// of returns the attributes of an event's lock, and more.
func (exp *exporter) of(e distlock.Event, more ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributes(append([]attribute.KeyValue{
		attribute.String("class", exp.classes.Of(e.Name)), attribute.String("mode", e.Mode.String()),
	}, more...)...)
}

func (exp *exporter) waits(e distlock.Event) { exp.waiting.Add(e.Context, 1, exp.of(e)) }

func (exp *exporter) gaveUp(e distlock.Event) {
	exp.waiting.Add(e.Context, -1, exp.of(e))
	exp.endWait(e, "gave_up")
}

func (exp *exporter) refused(e distlock.Event) { exp.endWait(e, "refused") }

func (exp *exporter) granted(e distlock.Event) {
	if e.Contended {
		exp.waiting.Add(e.Context, -1, exp.of(e))
	}
	exp.begin(e, "granted")
}

func (exp *exporter) handedOff(e distlock.Event) {
	exp.waiting.Add(e.Context, -1, exp.of(e))
	exp.begin(e, "handed_off")
}

// begin notes that a lock is held.
func (exp *exporter) begin(e distlock.Event, outcome string) {
	exp.held.Add(e.Context, 1, exp.of(e))
	span := exp.endWait(e, outcome)
	if span.IsValid() {
		exp.mu.Lock()
		exp.grants[grant{e.Name, e.Fence}] = span
		exp.mu.Unlock()
	}
}

// endWait notes that a wait is over, and returns its span.
func (exp *exporter) endWait(e distlock.Event, outcome string) trace.SpanContext {
	exp.wait.Record(e.Context, e.Waited.Seconds(), exp.of(e, attribute.String("outcome", outcome)))
	var links []trace.Link
	if e.Blocker != nil {
		exp.mu.Lock()
		blocker, known := exp.grants[grant{e.Name, e.Blocker.Fence}]
		exp.mu.Unlock()
		if known {
			links = append(links, trace.Link{SpanContext: blocker})
		}
	}
	var failure error
	if outcome == "gave_up" && !errors.Is(e.Err, distlock.ErrHeld) {
		failure = e.Err
	}
	return exp.span(e, "distlock.wait", e.Waited, outcome, failure, links...)
}

func (exp *exporter) released(e distlock.Event) { exp.endHold(e, "released", nil) }

func (exp *exporter) lost(e distlock.Event) {
	reason := "deadline"
	switch {
	case errors.Is(e.Err, renew.ErrGone):
		reason = "fact"
		exp.renewals.Add(e.Context, 1, metric.WithAttributes(attribute.String("outcome", "lost")))
	case errors.Is(e.Err, renew.ErrMaxHold):
		reason = "max_hold"
	case errors.Is(e.Err, renew.ErrBroken):
		reason = "broken"
	}
	exp.losses.Add(e.Context, 1, metric.WithAttributes(attribute.String("reason", reason)))
	exp.endHold(e, "lost", e.Err)
}

// endHold notes that a lock is held no longer.
func (exp *exporter) endHold(e distlock.Event, outcome string, failure error) {
	exp.held.Add(e.Context, -1, exp.of(e))
	exp.hold.Record(e.Context, e.Held.Seconds(), exp.of(e, attribute.String("outcome", outcome)))
	exp.span(e, "distlock.hold", e.Held, outcome, failure)
	exp.mu.Lock()
	delete(exp.grants, grant{e.Name, e.Fence})
	exp.mu.Unlock()
}

// downgraded counts a lock in its new mode. The link from a wait to its span is lost: it has another fence now.
func (exp *exporter) downgraded(e distlock.Event) {
	exp.held.Add(e.Context, -1, exp.of(e))
	exp.mu.Lock()
	delete(exp.grants, grant{e.Name, e.Fence})
	exp.mu.Unlock()
	e.Mode = distlock.Read
	exp.held.Add(e.Context, 1, exp.of(e))
}

// span makes a span that ends now and took so long.
func (exp *exporter) span(e distlock.Event, name string, took time.Duration, outcome string, failure error, links ...trace.Link) trace.SpanContext {
	now := time.Now()
	_, span := exp.tracer.Start(e.Context, name, trace.WithTimestamp(now.Add(-took)), trace.WithLinks(links...), trace.WithAttributes(
		attribute.String("distlock.name", e.Name), attribute.String("distlock.mode", e.Mode.String()), attribute.String("distlock.outcome", outcome)))
	if e.Fence != 0 && span.IsRecording() {
		span.SetAttributes(attribute.Int64("distlock.fence", int64(e.Fence)))
	}
	if failure != nil {
		span.SetStatus(codes.Error, failure.Error())
	}
	span.End(trace.WithTimestamp(now))
	return span.SpanContext()
}

func (exp *exporter) renewed(e distlock.Event) {
	exp.left.Record(context.Background(), e.Left.Seconds())
	exp.renewals.Add(context.Background(), 1, metric.WithAttributes(attribute.String("outcome", "renewed")))
}

func (exp *exporter) unanswered(e distlock.Event) {
	if e.Op != "renew" {
		return
	}
	exp.renewals.Add(context.Background(), 1, metric.WithAttributes(attribute.String("outcome", "unknown")))
}
