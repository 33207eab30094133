package main

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/examples/internal/exampletest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// Prometheus reads what docs/metrics.md asks for.
func TestPrometheusReadsIt(t *testing.T) {
	addr := testserver.FreeAddr(t)
	p := exampletest.Start(t, "DISTLOCK_URL="+testserver.SharedRedis(t).URL()+"?prefix=metrics:", "LISTEN="+addr)
	for text := ""; !strings.Contains(text, `distlock_hold_duration_seconds_count{class="order:*"`); time.Sleep(50 * time.Millisecond) {
		if r, err := http.Get("http://" + addr + "/metrics"); err == nil {
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
