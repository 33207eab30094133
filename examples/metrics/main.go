// Metrics serves the metrics of its locks to Prometheus, at http://localhost:2112/metrics.
package main

import (
	"cmp"
	"context"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/distlock/distlock"
	_ "github.com/distlock/distlock/backend/all" // or the one backend that you use
	"github.com/distlock/distlock/distlockotel"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	observer := get(distlockotel.New(distlockotel.Options{MeterProvider: metric.NewMeterProvider(metric.WithReader(get(prometheus.New())))}))
	locks := get(distlock.Open(ctx, cmp.Or(os.Getenv("DISTLOCK_URL"), "redis://localhost:6379?prefix=locks:"), &distlock.Options{Observer: observer}))
	defer locks.Close()
	http.Handle("/metrics", promhttp.Handler())
	go func() { log.Fatal(http.ListenAndServe(cmp.Or(os.Getenv("LISTEN"), "localhost:2112"), nil)) }()
	for ctx.Err() == nil { // your work
		_ = locks.Mutex("order:555").Do(ctx, func(context.Context) error { time.Sleep(10 * time.Millisecond); return nil })
	}
}

func get[T any](result T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return result
}
