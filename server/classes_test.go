package server

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// scraped returns the metrics of a server at which everything has happened that they count.
func scraped(t *testing.T) (text, page string) {
	synctest.Test(t, func(t *testing.T) {
		s := serverOf(t, Options{Access: tokens(t, "all sha256:"+HashToken("all")+" lock,see,ask,break *\nsome sha256:"+HashToken("some")+" lock,see a/\n")})
		as := func(status int, who, method, path, body string, header ...string) string {
			t.Helper()
			w := bare(t.Context(), s, method, path, body, append(header, "Authorization", "Bearer "+who)...)
			expect.Equal(t, w.Code, status, path)
			return w.Body.String()
		}
		as(200, "all", "POST", "/v1/acquire", hold("order:1", ownerA))
		answered := make(chan string)
		go func() { answered <- as(200, "all", "POST", "/v1/acquire", waiting("order:1", ownerB, 60_000)) }()
		synctest.Wait()
		as(204, "all", "POST", "/v1/release", hold("order:1", ownerA))
		<-answered
		as(200, "all", "POST", "/v1/locks/a%2F1?ttl=1s", "")
		time.Sleep(2 * time.Second)
		as(403, "some", "POST", "/v1/acquire", hold("order:2", ownerA))
		must.OK(t, s.backend.Release(t.Context(), driver.Hold{Name: "order:1", Owner: ownerB, Mode: driver.Exclusive}))
		as(200, "all", "POST", "/v1/renew", `{"holds":[`+hold("order:1", ownerB)+`]}`)
		text = as(200, "all", "GET", "/metrics", "")
		page = as(200, "all", "GET", "/losses", "")
		if less := as(200, "some", "GET", "/metrics", ""); strings.Contains(less, "class=") || !strings.Contains(less, "distlock_server_holds") {
			t.Errorf("for one who may not see all locks: %s", less)
		}
	})
	return text, page
}

// The counters say what has happened, and the page has the same number of losses.
func TestCountersByClass(t *testing.T) {
	t.Parallel()
	text, page := scraped(t)
	for _, line := range []string{
		`distlock_server_taken_total{class="order:*"} 2`, `distlock_server_taken_total{class="a/*"} 1`,
		`distlock_server_waits_total{class="order:*"} 1`, `distlock_server_expired_total{class="a/*"} 1`,
		`distlock_server_losses_total{cause="lost",class="order:*"} 1`, `distlock_server_denied_total{class="order:*",right="lock"} 1`,
	} {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("no %s in\n%s", line, text)
		}
	}
	if !strings.Contains(page, "1 since the start of this server") {
		t.Errorf("the page: %s", page)
	}
}

const contrib = "../contrib/"

// The alerts and the dashboard for servers ask for metrics that exist, and the alerts fire when their tests say.
func TestServerAlerts(t *testing.T) {
	text, _ := scraped(t)
	alerts := must.Get(os.ReadFile(contrib + "prometheus/server-alerts.yml"))(t)
	dashboard := must.Get(os.ReadFile(contrib + "grafana/distlock-server.json"))(t)
	expect.Equal(t, json.Valid(dashboard), true, "the dashboard is JSON")
	for _, name := range regexp.MustCompile(`distlock_[a-z_]+`).FindAllString(string(alerts)+string(dashboard), -1) {
		if !strings.Contains(text, "\n"+name+"{") && !strings.Contains(text, "\n"+name+" ") {
			t.Errorf("%s is asked for and not exported", name)
		}
	}
	doc := must.Get(os.ReadFile("../docs/server.md"))(t)
	for _, alert := range regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(string(alerts), -1) {
		if !strings.Contains(string(doc), "| `"+alert[1]+"` |") {
			t.Errorf("docs/server.md does not explain %s", alert[1])
		}
	}
	path := testserver.Tool(t, "promtool")
	for _, args := range [][]string{{"check", "rules", "server-alerts.yml"}, {"test", "rules", "server-alerts_test.yml"}, {"check", "metrics"}} {
		cmd := exec.Command(path, args...)
		cmd.Dir, cmd.Stdin = contrib+"prometheus", strings.NewReader(text)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
}

// Clients without the right to a lock can't use up the classes of others.
func TestClassesOfStrangers(t *testing.T) {
	t.Parallel()
	c := newClasses()
	for i := range 1000 {
		c.refused(strings.Repeat("x", i+1), Lock)
	}
	c.taken.WithLabelValues(c.granted.Of("order:1")).Inc()
	all := must.Get(c.registry.Gather())(t)
	for _, m := range all {
		if m.GetName() == "distlock_server_taken_total" && m.Metric[0].Label[0].GetValue() != "order:*" {
			t.Errorf("%v", m)
		}
	}
}
