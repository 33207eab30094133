package distlockotel

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// rig is a client whose metrics and spans a test reads.
type rig struct {
	*distlock.Client
	t      *testing.T
	reader *metric.ManualReader
	spans  *tracetest.SpanRecorder
	tracer *sdktrace.TracerProvider
}

func newRig(t *testing.T, b driver.Backend) *rig {
	t.Helper()
	r := &rig{t: t, reader: metric.NewManualReader(), spans: tracetest.NewSpanRecorder()}
	r.tracer = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(r.spans))
	o := must.Get(New(Options{MeterProvider: metric.NewMeterProvider(metric.WithReader(r.reader)), TracerProvider: r.tracer}))(t)
	r.Client = must.Get(distlock.New(b, &distlock.Options{Observer: o}))(t)
	t.Cleanup(func() { r.Close() })
	return r
}

// metrics returns all points as text: counters by their value, histograms by their count.
func (r *rig) metrics() map[string]int64 {
	r.t.Helper()
	var all metricdata.ResourceMetrics
	must.OK(r.t, r.reader.Collect(context.Background(), &all))
	points := map[string]int64{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					points[point(m.Name, p.Attributes)] = p.Value
				}
			case metricdata.Histogram[float64]:
				for _, p := range d.DataPoints {
					points[point(m.Name, p.Attributes)] = int64(p.Count)
				}
			}
		}
	}
	return points
}

func point(name string, attrs attribute.Set) string {
	var all []string
	for _, kv := range attrs.ToSlice() {
		all = append(all, string(kv.Key)+"="+kv.Value.AsString())
	}
	slices.Sort(all)
	return name + "{" + strings.Join(all, ",") + "}"
}

func (r *rig) wants(want map[string]int64) {
	r.t.Helper()
	got := r.metrics()
	for point, n := range want {
		if got[point] != n {
			r.t.Errorf("%s: got %d, want %d; all are %v", point, got[point], n, slices.Sorted(maps.Keys(got)))
		}
	}
}

// Each way of waiting and holding is counted, by class and not by name.
func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, memlock.New())
		ctx := t.Context()
		first := must.Get(r.Mutex("order:1").Lock(ctx))(t)
		must.Be(t, expect.Err(r.Mutex("order:1").TryLock(ctx)), distlock.ErrHeld)
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if _, err := r.Mutex("order:1").Lock(short); err == nil {
			t.Fatal("granted")
		}
		done := make(chan *distlock.Lease)
		go func() { l, _ := r.Mutex("order:1").Lock(ctx); done <- l }()
		synctest.Wait()
		const lock = "class=order:*,mode=exclusive"
		r.wants(map[string]int64{
			"distlock.held{" + lock + "}": 1, "distlock.waiting{" + lock + "}": 1,
			"distlock.wait.duration{" + lock + ",outcome=refused}": 1, "distlock.wait.duration{" + lock + ",outcome=gave_up}": 1,
			"distlock.wait.duration{" + lock + ",outcome=granted}": 1,
		})
		time.Sleep(11 * time.Second)
		must.OK(t, first.Unlock(ctx))
		second := <-done
		r.wants(map[string]int64{
			"distlock.held{" + lock + "}": 1, "distlock.waiting{" + lock + "}": 0, "distlock.hold.duration{" + lock + ",outcome=released}": 1,
			"distlock.renewals{outcome=renewed}": 1, "distlock.lease.left{}": 1,
		})
		must.OK(t, second.Unlock(ctx))
		must.Get(r.Mutex("order:2").Lock(ctx))(t)
		r.wants(map[string]int64{"distlock.held{" + lock + "}": 1})
		for point := range r.metrics() {
			if strings.Contains(point, "order:1") || strings.Contains(point, first.Owner()) {
				t.Errorf("a name or an Owner is in %s", point)
			}
		}
	})
}

// A lock that was downgraded counts in its new mode, and no more once the client is closed.
func TestHeldAfterDowngradeAndClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, memlock.New())
		lease := must.Get(r.RWMutex("x").Lock(t.Context()))(t)
		must.OK(t, lease.Downgrade(t.Context()))
		r.wants(map[string]int64{"distlock.held{class=x,mode=write}": 0, "distlock.held{class=x,mode=read}": 1})
		must.OK(t, r.Close())
		r.wants(map[string]int64{"distlock.held{class=x,mode=write}": 0, "distlock.held{class=x,mode=read}": 0})
	})
}

// silent is a backend that stops to answer renewals.
type silent struct {
	*memlock.Backend
	broken chan struct{}
}

func (s silent) Renew(ctx context.Context, holds []driver.Hold) []error {
	select {
	case <-s.broken:
		return slices.Repeat([]error{errors.New("no answer")}, len(holds))
	default:
		return s.Backend.Renew(ctx, holds)
	}
}

// A loss is counted by its reason, without a class, and its span is an error.
func TestLosses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := silent{memlock.New(), make(chan struct{})}
		r := newRig(t, s)
		ctx, span := r.tracer.Tracer("test").Start(t.Context(), "caller")
		broken := must.Get(r.Mutex("a").Lock(ctx))(t)
		info := must.Get(r.Inspect(ctx, "a"))(t)
		must.OK(t, r.ForceUnlock(ctx, info))
		<-broken.Context().Done()
		forgotten := must.Get(r.Mutex("d").Lock(ctx))(t)
		must.OK(t, s.Backend.Release(ctx, driver.Hold{Name: "d", Owner: forgotten.Owner(), Mode: driver.Exclusive, TTL: time.Minute}))
		<-forgotten.Context().Done()
		long := must.Get(r.Mutex("b", distlock.MaxHold(time.Minute)).Lock(ctx))(t)
		<-long.Context().Done()
		unanswered := must.Get(r.Mutex("c").Lock(ctx))(t)
		close(s.broken)
		<-unanswered.Context().Done()
		synctest.Wait()
		r.wants(map[string]int64{
			"distlock.losses{reason=fact}": 1, "distlock.losses{reason=broken}": 1, "distlock.losses{reason=max_hold}": 1, "distlock.losses{reason=deadline}": 1,
			"distlock.hold.duration{class=c,mode=exclusive,outcome=lost}": 1, "distlock.held{class=c,mode=exclusive}": 0,
		})
		if r.metrics()["distlock.renewals{outcome=unknown}"] == 0 {
			t.Error("no renewal without an answer is counted")
		}
		span.End()
		lost := 0
		for _, s := range r.spans.Ended() {
			if s.Name() == "distlock.hold" && s.Status().Code == codes.Error {
				lost++
				expect.Equal(t, s.Parent().SpanID(), span.SpanContext().SpanID(), "the span of a loss is no child of its caller's")
			}
		}
		expect.Equal(t, lost, 4, "spans of losses")
	})
}

// Spans begin in the past, descend from the caller's and link to the holder in the way. A refusal is no error.
func TestSpans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, memlock.New())
		ctx, caller := r.tracer.Tracer("test").Start(t.Context(), "caller")
		lease := must.Get(r.Mutex("order:1").Lock(ctx))(t)
		time.Sleep(5 * time.Second)
		must.Be(t, expect.Err(r.Mutex("order:1").TryLock(ctx)), distlock.ErrHeld)
		must.OK(t, lease.Unlock(ctx))
		caller.End()
		spans := map[string]sdktrace.ReadOnlySpan{}
		for _, s := range r.spans.Ended() {
			for _, a := range s.Attributes() {
				if a.Key == "distlock.outcome" {
					spans[a.Value.AsString()] = s
				}
			}
			if strings.Contains(fmt.Sprint(s.Attributes(), s.Status()), lease.Owner()) {
				t.Errorf("an Owner is in the span %s", s.Name())
			}
		}
		granted, refused, released := spans["granted"], spans["refused"], spans["released"]
		if granted == nil || refused == nil || released == nil {
			t.Fatalf("spans: %v", spans)
		}
		for _, s := range spans {
			if s.Parent().SpanID() != caller.SpanContext().SpanID() || s.Status().Code == codes.Error {
				t.Errorf("%s: parent %v, status %v", s.Name(), s.Parent().SpanID(), s.Status())
			}
		}
		expect.Equal(t, released.EndTime().Sub(released.StartTime()), 5*time.Second, "the hold took")
		if l := refused.Links(); len(l) != 1 || l[0].SpanContext.SpanID() != granted.SpanContext().SpanID() {
			t.Errorf("links of the refusal: %v, want the grant", l)
		}
	})
}

// The measurements of waits and holds name the caller's trace.
func TestExemplars(t *testing.T) {
	r := newRig(t, memlock.New())
	ctx, caller := r.tracer.Tracer("test").Start(t.Context(), "caller")
	must.OK(t, must.Get(r.Mutex("order:1").Lock(ctx))(t).Unlock(ctx))
	caller.End()
	var all metricdata.ResourceMetrics
	must.OK(t, r.reader.Collect(t.Context(), &all))
	trace, named := caller.SpanContext().TraceID(), map[string]bool{}
	for _, m := range all.ScopeMetrics[0].Metrics {
		if d, is := m.Data.(metricdata.Histogram[float64]); is {
			for _, e := range d.DataPoints[0].Exemplars {
				named[m.Name] = named[m.Name] || [16]byte(e.TraceID) == trace
			}
		}
	}
	for _, name := range []string{"distlock.wait.duration", "distlock.hold.duration"} {
		if !named[name] {
			t.Errorf("%s has no exemplar of trace %v", name, trace)
		}
	}
}
