package distlockotel_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/distlockotel"
)

// Prometheus reads the metrics of a client. With a MeterProvider that is set for the whole program, Options may be empty.
func ExampleNew() {
	registry := prometheus.NewRegistry()
	exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(registry))
	if err != nil {
		panic(err)
	}
	observer, err := distlockotel.New(distlockotel.Options{MeterProvider: metric.NewMeterProvider(metric.WithReader(exporter))})
	if err != nil {
		panic(err)
	}
	locks, err := distlock.New(memlock.New(), &distlock.Options{Observer: observer})
	if err != nil {
		panic(err)
	}
	defer locks.Close()
	http.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))

	_ = locks.Mutex("order:555").Do(context.Background(), func(context.Context) error { return nil })
	page := httptest.NewRecorder() // in a program, http.ListenAndServe
	http.DefaultServeMux.ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
	for line := range strings.Lines(page.Body.String()) {
		if strings.HasPrefix(line, "distlock_hold_duration_seconds_count") {
			fmt.Println(line[:strings.Index(line, ",")], "…")
		}
	}
	// Output: distlock_hold_duration_seconds_count{class="order:*" …
}
