package main

import (
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/examples/internal/exampletest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// Prometheus, as docs/metrics.md configures it, draws the first graph of the page.
func TestFirstGraph(t *testing.T) {
	page := string(must.Get(os.ReadFile("../../docs/metrics.md"))(t))
	config := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindStringSubmatch(page)[1]
	query := regexp.MustCompile(`histogram_quantile\(.*\)`).FindString(page)
	program, server, dir := testserver.FreeAddr(t), testserver.FreeAddr(t), t.TempDir()
	config = strings.NewReplacer("localhost:2112", program, "5s", "200ms", "[contrib/", "["+must.Get(filepath.Abs("../../contrib"))(t)+"/").Replace(config)
	must.OK(t, os.WriteFile(dir+"/prometheus.yml", []byte(config), 0o600))

	p := exampletest.Start(t, "DISTLOCK_URL="+testserver.SharedRedis(t).URL()+"?prefix=metrics:", "LISTEN="+program)
	prometheus := exec.Command(testserver.Tool(t, "prometheus"), "--config.file="+dir+"/prometheus.yml", "--storage.tsdb.path="+dir, "--web.listen-address="+server)
	must.OK(t, prometheus.Start())
	defer prometheus.Wait()
	defer prometheus.Process.Kill()
	ask := "http://" + server + "/api/v1/query?" + url.Values{"query": {query}}.Encode()
	for text := ""; !strings.Contains(text, `"class":"order:*"`); time.Sleep(100 * time.Millisecond) {
		if r, err := http.Get(ask); err == nil {
			text = string(must.Get(io.ReadAll(r.Body))(t))
			r.Body.Close()
		}
		select {
		case line := <-p.Lines:
			t.Fatal(line)
		default:
		}
	}
	p.Stop(t)
}

func TestItFailsWithoutAServer(t *testing.T) {
	exampletest.Fails(t, "connection refused", "DISTLOCK_URL=redis://127.0.0.1:1")
}
