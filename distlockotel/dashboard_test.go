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
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// Every question of the dashboard has an answer in a Prometheus that reads a busy client.
func TestLongDashboard(t *testing.T) {
	api := startPrometheus(t, busyClient(t))
	for _, expr := range dashboard(t) {
		query := strings.NewReplacer("$job", ".*", "$class", ".*", "$__rate_interval", "30s").Replace(expr)
		var says string
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
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
	text, err := os.ReadFile(contrib + "grafana/distlock.json")
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
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
	reader, err := otelprometheus.New(otelprometheus.WithRegisterer(registry))
	if err != nil {
		t.Fatal(err)
	}
	o, err := New(Options{MeterProvider: metric.NewMeterProvider(metric.WithReader(reader))})
	if err != nil {
		t.Fatal(err)
	}
	c, err := distlock.New(memlock.New(), &distlock.Options{Observer: o, TTL: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	must(t)(c.Mutex("held").Lock(t.Context()))
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
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	cmd := exec.Command(debian(t, "prometheus"), "--config.file="+config, "--storage.tsdb.path="+dir, "--web.listen-address="+addr)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := testserver.Spawn(cmd); err != nil {
		t.Fatal(err)
	}
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
