package distlockotel

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
)

// Prometheus reads the names that distlock advise, the dashboards and the alerts expect.
func TestPrometheus(t *testing.T) {
	registry := prometheus.NewRegistry()
	reader, err := otelprometheus.New(otelprometheus.WithRegisterer(registry))
	if err != nil {
		t.Fatal(err)
	}
	o, err := New(Options{MeterProvider: metric.NewMeterProvider(metric.WithReader(reader)), Class: func(string) string { return "jobs" }})
	if err != nil {
		t.Fatal(err)
	}
	c, err := distlock.New(memlock.New(), &distlock.Options{Observer: o})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	lease, err := c.Mutex("nightly").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := lease.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	text := w.Body.String()
	for _, want := range []string{
		`distlock_wait_duration_seconds_bucket{class="jobs",mode="exclusive"`, `distlock_hold_duration_seconds_count{class="jobs",mode="exclusive"`, `outcome="released"`,
		`distlock_held{class="jobs",mode="exclusive"`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
}
