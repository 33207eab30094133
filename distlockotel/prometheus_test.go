package distlockotel

import (
	"cmp"
	"encoding/json"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
)

// exported returns what Prometheus reads once every metric has a value.
func exported(t *testing.T) (text string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
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
		lease := must(t)(c.Mutex("nightly").Lock(t.Context()))
		next := make(chan *distlock.Lease)
		go func() { l, _ := c.Mutex("nightly").Lock(t.Context()); next <- l }()
		time.Sleep(15 * time.Second)
		if err := lease.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-next
		w := httptest.NewRecorder()
		promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		text = w.Body.String()
	})
	return text
}

// Prometheus reads the names and attributes that the package documents, and that distlock advise reads.
func TestPrometheus(t *testing.T) {
	text := exported(t)
	for _, want := range []string{
		`distlock_wait_duration_seconds_bucket{class="jobs",mode="exclusive"`, `distlock_hold_duration_seconds_count{class="jobs",mode="exclusive"`,
		`outcome="released"`, `distlock_held{class="jobs",mode="exclusive"`, `distlock_waiting{class="jobs",mode="exclusive"`,
		`distlock_renewals_total{`, `distlock_losses_total{`, `reason="max_hold"`, `distlock_lease_left_seconds_count{`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
}

const contrib = "../contrib/"

// The alerts and the dashboard ask for metrics that exist, and the runbook has a chapter for each alert.
func TestQueriesNameWhatIsExported(t *testing.T) {
	text := exported(t)
	alerts, err := os.ReadFile(contrib + "prometheus/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	dashboard, err := os.ReadFile(contrib + "grafana/distlock.json")
	if err != nil {
		t.Fatal(err)
	}
	if !json.Valid(dashboard) {
		t.Error("the dashboard is not JSON")
	}
	names := regexp.MustCompile(`distlock_[a-z_]+`).FindAllString(string(alerts)+string(dashboard), -1)
	if len(names) < 20 {
		t.Fatalf("%d names only: %v", len(names), names)
	}
	for _, name := range names {
		if !strings.Contains(text, "\n"+name+"{") {
			t.Errorf("%s is asked for and not exported", name)
		}
	}
	runbook, err := os.ReadFile("../docs/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, alert := range regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(string(alerts), -1) {
		if !strings.Contains(string(runbook), "\n### "+alert[1]+"\n") {
			t.Errorf("docs/runbook.md does not explain %s", alert[1])
		}
	}
}

// The alerts fire when their tests say, by Prometheus's own tool, and it finds nothing to say against what is exported.
func TestAlerts(t *testing.T) {
	promtool(t, "", "check", "rules", "alerts.yml")
	promtool(t, "", "test", "rules", "alerts_test.yml")
	if says := promtool(t, exported(t), "check", "metrics"); says != "" {
		t.Errorf("promtool check metrics: %s", says)
	}
}

// promtool runs in the folder of the alerts, and returns what it prints.
func promtool(t *testing.T, input string, args ...string) string {
	t.Helper()
	cmd := exec.Command(debian(t, "promtool"), args...)
	cmd.Dir, cmd.Stdin = contrib+"prometheus", strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("promtool %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// debian returns the path of a program of Debian's package prometheus.
func debian(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(cmp.Or(os.Getenv("DISTLOCK_TEST_"+strings.ToUpper(name)), name))
	if err != nil {
		if os.Getenv("DISTLOCK_TEST_REQUIRE") == "" {
			t.Skip(err)
		}
		t.Fatalf("%v: run make servers", err)
	}
	return path
}
