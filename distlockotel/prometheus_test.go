package distlockotel

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
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
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// exported returns what Prometheus reads once every metric has a value.
func exported(t *testing.T) (text string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		reader := must.Get(otelprometheus.New(otelprometheus.WithRegisterer(registry)))(t)
		o := must.Get(New(Options{MeterProvider: metric.NewMeterProvider(metric.WithReader(reader)), Class: func(string) string { return "jobs" }}))(t)
		c := must.Get(distlock.New(memlock.New(), &distlock.Options{Observer: o}))(t)
		defer c.Close()
		lease := must.Get(c.Mutex("nightly").Lock(t.Context()))(t)
		next := make(chan *distlock.Lease)
		go func() { l, _ := c.Mutex("nightly").Lock(t.Context()); next <- l }()
		time.Sleep(15 * time.Second)
		must.OK(t, lease.Unlock(t.Context()))
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
	alerts := must.Get(os.ReadFile(contrib + "prometheus/alerts.yml"))(t)
	dashboard := must.Get(os.ReadFile(contrib + "grafana/distlock.json"))(t)
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
	runbook := must.Get(os.ReadFile("../docs/runbook.md"))(t)
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
	expect.Equal(t, promtool(t, exported(t), "check", "metrics"), "", "promtool check metrics")
}

// promtool runs in the folder of the alerts, and returns what it prints.
func promtool(t *testing.T, input string, args ...string) string {
	t.Helper()
	cmd := exec.Command(testserver.Tool(t, "promtool"), args...)
	cmd.Dir, cmd.Stdin = contrib+"prometheus", strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("promtool %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// Every question of the dashboard has an answer in a Prometheus that reads a busy client.
func TestLongDashboard(t *testing.T) {
	api := startPrometheus(t, busyClient(t))
	for _, expr := range dashboard(t) {
		query := strings.NewReplacer("$job", ".*", "$class", ".*", "$__rate_interval", "30s").Replace(expr)
		var says string
		for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(200 * time.Millisecond) {
			if says = ask(api, query); says == "" {
				break
			}
			if strings.HasPrefix(says, "error") || time.Now().After(deadline) {
				t.Errorf("%s: %s", expr, says)
				break
			}
		}
	}
}

// dashboard returns the expressions of all panels.
func dashboard(t *testing.T) (all []string) {
	t.Helper()
	text := must.Get(os.ReadFile(contrib + "grafana/distlock.json"))(t)
	var d struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	must.OK(t, json.Unmarshal(text, &d))
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			all = append(all, target.Expr)
		}
	}
	if len(all) < 8 {
		t.Fatalf("%d expressions only: %q", len(all), all)
	}
	return all
}

// busyClient returns the address of the metrics of a client that holds a lock, for which another caller waits. Each
// time that they are read, it takes and releases one lock and loses another.
func busyClient(t *testing.T) string {
	registry := prometheus.NewRegistry()
	reader := must.Get(otelprometheus.New(otelprometheus.WithRegisterer(registry)))(t)
	o := must.Get(New(Options{MeterProvider: metric.NewMeterProvider(metric.WithReader(reader))}))(t)
	c := must.Get(distlock.New(memlock.New(), &distlock.Options{Observer: o, TTL: 9 * time.Second}))(t)
	t.Cleanup(func() { c.Close() })
	must.Get(c.Mutex("held").Lock(t.Context()))(t)
	go c.Mutex("held").Lock(t.Context())
	metrics := promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if lease, err := c.Mutex("taken").Lock(r.Context()); err != nil || lease.Unlock(r.Context()) != nil {
			t.Errorf("a free lock: %v", err)
		}
		if lease, err := c.Mutex("lost", distlock.MaxHold(time.Millisecond)).Lock(r.Context()); err == nil {
			<-lease.Context().Done()
		}
		metrics.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// startPrometheus starts a Prometheus that reads the metrics at an address twice a second, and returns where it
// listens.
func startPrometheus(t *testing.T, target string) string {
	t.Helper()
	dir, addr := t.TempDir(), testserver.FreeAddr(t)
	config := filepath.Join(dir, "prometheus.yml")
	text := fmt.Sprintf("global: {scrape_interval: 500ms}\nscrape_configs: [{job_name: test, static_configs: [{targets: [%q]}]}]\n", target)
	must.OK(t, os.WriteFile(config, []byte(text), 0o600))
	var log strings.Builder
	cmd := exec.Command(testserver.Tool(t, "prometheus"), "--config.file="+config, "--storage.tsdb.path="+dir, "--web.listen-address="+addr)
	cmd.Stdout, cmd.Stderr = &log, &log
	must.OK(t, testserver.Spawn(cmd))
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	return addr
}

// ask returns what is wrong with the answer to a query, which passes until there are enough samples; an "error" does
// not.
func ask(api, query string) string {
	resp, err := http.Get("http://" + api + "/api/v1/query?query=" + url.QueryEscape(query))
	if err != nil {
		return err.Error() // it starts
	}
	defer resp.Body.Close()
	var answer struct {
		Error string
		Data  struct {
			Result []struct{ Value [2]any }
		}
	}
	err = json.NewDecoder(resp.Body).Decode(&answer)
	switch {
	case answer.Error != "":
		return "error: " + answer.Error
	case err != nil:
		return err.Error()
	}
	for _, series := range answer.Data.Result {
		if value := fmt.Sprint(series.Value[1]); value != "0" && value != "NaN" {
			return ""
		}
	}
	return fmt.Sprintf("no value in %v", answer.Data.Result)
}
