package browsertest

import (
	"context"
	"fmt"
	"hash/fnv"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-rod/rod/lib/proto"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/server"
)

// TestLongScreens opens every page, light and dark, on a desk and on a phone, in English and Chinese: no page is wider than its window.
// With -screens it leaves pictures; those in Chinese need a font.
func TestLongScreens(t *testing.T) {
	r := start(t, aged{memlock.New()}, server.Options{Version: "v1.4.0"})
	r.populate()
	for _, look := range []struct {
		name, lang    string
		dark, phone   bool
		width, height int
	}{
		{"light", "en", false, false, 1280, 760}, {"dark", "en", true, false, 1280, 760},
		{"phone-light", "en", false, true, 390, 844}, {"phone-dark", "en", true, true, 390, 844},
		{"zh", "zh-CN", false, false, 1280, 760}, {"phone-zh", "zh-CN", true, true, 390, 844},
	} {
		p := r.open("/")
		p.language(look.lang)
		p.size(look.width, look.height, look.phone)
		scheme := map[bool]string{false: "light", true: "dark"}[look.dark]
		p.must(proto.EmulationSetEmulatedMedia{Features: []*proto.EmulationMediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}.Call(p))
		for _, page := range [][2]string{{"locks", "/"}, {"lock", "/lock?name=order%3A555"}, {"hot", "/hot"}, {"losses", "/losses"}, {"backend", "/backend"}} {
			p.visit(r.url + page[1])
			p.until("document.getElementById('live').classList.contains('on')")
			if p.eval(fmt.Sprintf("document.documentElement.scrollWidth <= %d", look.width)) != "true" {
				t.Errorf("%s, %s: wider than the window", page[0], look.name)
			}
			if text := p.eval("violations"); text != "" {
				t.Errorf("%s: the policy forbids %s", page[0], text)
			}
			p.shot(page[0] + "-" + look.name)
		}
		p.visit(r.url + "/lock?name=reindex") // whose TTL a busy machine does not outlast
		p.click("[data-break]")
		p.until("document.getElementById('break').open")
		p.shot("dialog-" + look.name)
		p.must(p.Close())
	}
}

// aged is a backend whose locks are older than they are, for pictures.
type aged struct{ *memlock.Backend }

func (b aged) Inspect(ctx context.Context, name string) (driver.Info, error) {
	info, err := b.Backend.Inspect(ctx, name)
	sum := fnv.New32()
	_, _ = sum.Write([]byte(name))
	age := time.Duration(sum.Sum32()%5000) * time.Second
	for i := range info.Holders {
		info.Holders[i].Held += age
	}
	for i := range info.Waiters {
		info.Waiters[i].Held += age / time.Duration(i+2)
	}
	return info, err
}

// populate makes locks as a fleet has them.
func (r *rig) populate() {
	post := func(path, body string) {
		r.Helper()
		resp, err := http.Post(r.url+path, "application/json", strings.NewReader(body))
		if err != nil {
			r.Fatal(err)
		}
		resp.Body.Close()
	}
	owner := func(i int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", i) }
	take := func(i int, name, program, host, more string, ttl int) {
		post("/v1/acquire", fmt.Sprintf(`{"name":%q,"owner":%q,"ttl_ms":%d,"meta":{"program":%q,"pid":"%d","host":%q}%s}`,
			name, owner(i), ttl, program, 2000+37*i, host, more))
	}
	release := func(i int, name string) {
		post("/v1/release", fmt.Sprintf(`{"name":%q,"owner":%q}`, name, owner(i)))
	}
	n := 1000
	for i := range 40 {
		n++
		take(n, "order:555", "billing", fmt.Sprintf("web-%d", 1+i%4), "", 30000)
		release(n, "order:555")
		if i%3 == 0 {
			n++
			take(n, "tenant:42/export", "exporter", "batch-2", "", 30000)
			release(n, "tenant:42/export")
		}
	}
	take(1, "order:555", "billing", "web-3.eu-1.example.com", "", 30000)
	for i := range 6 {
		take(10+i, "order:555", "billing", fmt.Sprintf("web-%d.eu-1.example.com", 4+i), `,"queue":true`, 60000)
	}
	take(2, "nightly-report", "report.sh", "cron-1", "", 40000)
	take(3, "migrations", "migrate", "deploy-7f9c", "", 60000)
	take(30, "migrations", "migrate", "deploy-8a11", `,"queue":true`, 60000)
	take(4, "cache:refresh/products", "refresher", "app-2", "", 28000)
	for i := range 3 {
		take(40+i, "api:geocoder", "importer", fmt.Sprintf("imp-%d", i), `,"mode":"counted","limit":5`, 30000)
	}
	for i := range 2 {
		take(50+i, "catalog", "reader", fmt.Sprintf("app-%d", i), `,"mode":"read"`, 30000)
	}
	take(60, "leader:scheduler", "scheduler", "core-1", "", 15000)
	for i := range 6 {
		take(70+i, fmt.Sprintf("invoice:%d", 90210+17*i), "invoicer", fmt.Sprintf("worker-%d", 1+i%5), "", 20000+1000*i)
	}
	take(90, "stuck-import", "import.py", "etl-3", "", 7000)
	take(91, "payout:eu", "payouts", "worker-9", "", 30000)
	post("/v1/release", fmt.Sprintf(`{"name":"payout:eu","owner":%q}`, owner(91)))
	post("/v1/renew", fmt.Sprintf(`{"holds":[{"name":"payout:eu","owner":%q,"ttl_ms":30000}]}`, owner(91)))
	take(93, "reindex", "indexer", "search-1", "", 3600_000)
	take(92, "sync:crm", "crm-sync", "worker-2", "", 30000)
	time.Sleep(4 * time.Second) // so that some time has passed
}
