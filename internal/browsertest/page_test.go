package browsertest

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-rod/rod/lib/input"
	"github.com/go-rod/rod/lib/proto"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/distlock/distlock/server"
)

const evil = `<script>document.title = "broken"</script>`

// TestLongPage is the way of an operator: a lock appears, its holder is killed, another waits, and the lock is
// asked for and broken.
func TestLongPage(t *testing.T) {
	r := start(t, memlock.New(), server.Options{})
	p := r.open("/")
	p.shows("No lock is held.")
	p.until("document.getElementById('live').textContent === 'Live'")

	holder := r.holder("job")
	p.shows("worker-1")
	p.until("document.querySelectorAll('#rows tr').length === 1")
	p.until("document.querySelector('[data-tone]').dataset.tone === 'good'")
	must.OK(t, holder.Process.Kill())
	p.until("document.querySelector('[data-tone]')?.dataset.tone !== 'good'") // no process renews it
	p.shows("No lock is held.")
	p.until("document.querySelectorAll('#rows tr').length === 0")

	asked := make(chan struct{}, 1)
	held := driver.Request{Hold: driver.Hold{Name: evil}, Meta: map[string]string{"program": "owner-program", "host": evil, "note": evil},
		OnRevoke: func() { asked <- struct{}{} }}
	g := r.acquire(held)
	waiter := driver.Request{Hold: driver.Hold{Name: evil, Owner: driver.NewOwner()}, Queue: true, Meta: meta("waiter-program", "b")}
	r.acquire(waiter)
	p.shows("owner-program")
	p.until("document.querySelector('#rows .waiters').textContent === '1'")
	p.click("#rows a")
	p.shows("waiter-program")
	p.shows(evil)

	p.click("form[action^='/lock/ask'] button")
	p.shows("The holder was asked")
	<-asked

	p.click("[data-break]")
	p.until("document.getElementById('break').open")
	p.until("document.activeElement.id === 'break-cancel'")
	expect.Equal(t, p.eval("document.getElementById('break-shown').textContent"), strconv.FormatUint(g.Fence, 10), "the dialog shows fence")
	p.write("#break-confirm", "something else")
	p.until("document.getElementById('break-do').disabled")
	p.must(p.Keyboard.Type(input.Enter)) // means Cancel
	p.until("!document.getElementById('break').open")

	p.click("[data-break]")
	p.write("#break-confirm", evil)
	p.until("!document.getElementById('break-do').disabled")
	p.click("#break-do")
	p.shows("The lock was broken.")
	if next := r.acquire(waiter); next.Fence <= g.Fence {
		t.Errorf("fence %d after %d", next.Fence, g.Fence)
	}
	p.until("document.querySelector('#holders .party')?.textContent.includes('waiter-program')")
	p.visit(r.url + "/losses")
	p.shows("broken")
	p.shows(evil)
	if title := p.eval("document.title"); strings.Contains(title, "broken") {
		t.Error("the script of an attacker ran")
	}
	expect.Equal(t, p.eval("document.querySelectorAll('script').length"), "1", "scripts")
}

// holder starts a process that holds a lock, and renews it until it is killed.
func (r *rig) holder(name string) *exec.Cmd {
	r.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), "HOLDER_URL="+r.url, "HOLDER_NAME="+name)
	must.OK(r, testserver.Spawn(cmd))
	r.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

// hold is the process that holder starts.
func hold(url string) {
	post := func(path string, body any) {
		text, err := json.Marshal(body)
		if err != nil {
			panic(err)
		}
		resp, err := http.Post(url+path, "application/json", strings.NewReader(string(text)))
		if err != nil {
			panic(err)
		}
		resp.Body.Close()
	}
	own := map[string]any{"name": os.Getenv("HOLDER_NAME"), "owner": driver.NewOwner(), "ttl_ms": 9000}
	acquire := map[string]any{"meta": map[string]string{"program": "holder", "pid": strconv.Itoa(os.Getpid()), "host": "worker-1"}}
	for key, value := range own {
		acquire[key] = value
	}
	for {
		post("/v1/acquire", acquire) // once more, in case it was lost on a busy machine
		post("/v1/renew", map[string]any{"holds": []any{own}})
		time.Sleep(200 * time.Millisecond)
	}
}

// TestRights logs in as a user who may break locks, and as a user who may only see some.
func TestRights(t *testing.T) {
	r := start(t, memlock.New(), server.Options{Access: access(t,
		"ops sha256:"+server.HashToken("ops-token")+" see,ask,break *", "dev sha256:"+server.HashToken("dev-token")+" see dev/")})
	g := r.acquire(driver.Request{Hold: driver.Hold{Name: "dev/x"}, Meta: meta("p", "h")})
	r.acquire(driver.Request{Hold: driver.Hold{Name: "prod/y"}, Meta: meta("p", "h")})

	p := r.open("/lock?name=dev/x")
	p.write("#token", "wrong-token")
	p.click("main button")
	p.shows("doesn’t know this token")
	p.write("#token", "dev-token")
	p.click("main button")
	p.shows("dev/x")
	expect.Equal(t, p.eval("document.cookie"), "", "scripts can read the cookie")
	expect.Equal(t, p.eval("document.querySelectorAll('[data-break], form[action^=\"/lock/ask\"]').length"), "0", "buttons for one without the right")
	status := p.eval(fmt.Sprintf(`await fetch('/lock/break?name=dev/x', {method: 'POST', body: new URLSearchParams({fence: '%d', confirm: 'dev/x'})}).then(r => r.status)`, g.Fence))
	if status != "403" {
		t.Errorf("status %s for one without the right", status)
	}
	p.visit(r.url + "/")
	p.until("document.getElementById('live').classList.contains('on')")
	p.shows("dev/x")
	p.lacks("prod/y")
	p.click(".who button")
	p.shows("Log in")

	p.write("#token", "ops-token")
	p.click("main button")
	p.shows("prod/y")
	p.visit(r.url + "/lock?name=prod/y")
	if n := p.eval("document.querySelectorAll('[data-break], form[action^=\"/lock/ask\"]').length"); n != "1" && n != "2" {
		t.Errorf("%s buttons for one with the right", n)
	}
}

// TestThousandLocks scrolls through a thousand locks: the browser lays out only those that can be seen, the
// list keeps its height, and one change replaces one row.
func TestThousandLocks(t *testing.T) {
	r := start(t, memlock.New(), server.Options{})
	for i := range 1000 {
		r.acquire(driver.Request{Hold: driver.Hold{Name: fmt.Sprintf("lock-%04d", i)}, Meta: meta("program", "host")})
	}
	p := r.open("/?sort=name")
	p.until("document.querySelectorAll('#rows tr').length === 1000")
	p.until("document.getElementById('live').classList.contains('on')")
	p.until("document.querySelectorAll('#rows time').length >= 2000") // all were inspected
	const drawn = "[...document.querySelectorAll('#rows tr td')].filter(e => e.checkVisibility({contentVisibilityAuto: true})).length / 7"
	height := p.eval("document.documentElement.scrollHeight")
	for _, at := range []string{"0", "0.5", "1"} {
		p.eval("window.scrollTo(0, document.documentElement.scrollHeight * " + at + ")")
		p.until(drawn + " > 10 && " + drawn + " < 200")
	}
	p.until("[...document.querySelectorAll('#rows tr')].at(-1).getBoundingClientRect().bottom <= innerHeight")
	if now := p.eval("document.documentElement.scrollHeight"); now != height {
		t.Errorf("the page had a height of %s, and has %s", height, now)
	}
	expect.Equal(t, p.eval("document.querySelector('thead').getBoundingClientRect().top >= 0"), "true", "the titles of the columns can't be seen")
	p.eval("(window.first = document.querySelector('#rows tr'), window.last = [...document.querySelectorAll('#rows tr')].at(-1), 0)")
	r.acquire(driver.Request{Hold: driver.Hold{Name: "lock-0999", Owner: driver.NewOwner()}, Queue: true})
	p.until("[...document.querySelectorAll('#rows tr')].at(-1).textContent.includes('lock-0999') && !last.isConnected")
	expect.Equal(t, p.eval("first.isConnected"), "true", "a row that had not changed was replaced")
}

// TestRenewal shows a renewal in the row of a lock, and in its card, without that these are replaced. A holder that can't be
// asked has a button that says why.
func TestRenewal(t *testing.T) {
	t.Parallel()
	b := deaf{memlock.New()}
	r := start(t, b, server.Options{})
	h := driver.Hold{Name: "job", Owner: driver.NewOwner(), Mode: driver.Exclusive, TTL: time.Hour}
	must.Get(b.Acquire(t.Context(), driver.Request{Hold: h, Fences: 1}))(t)
	h.TTL = 2 * time.Hour
	for _, path := range []string{"/", "/lock?name=job"} {
		p := r.open(path)
		p.until("document.getElementById('live').classList.contains('on')")
		p.eval("document.querySelector('[data-until]').mark = 'same'")
		p.eval("window.before = Number(document.querySelector('[data-until]').dataset.until)")
		must.OK(t, b.Renew(t.Context(), []driver.Hold{h})[0])
		p.until("Number(document.querySelector('[data-until]').dataset.until) > before + 3000000")
		p.until("document.querySelector('[data-until]').mark === 'same'")
		if path != "/" {
			p.shows("This backend can't ask a holder for its lock.")
			p.until("document.querySelector('[id^=ask-]').disabled")
		}
		h.TTL += time.Hour
	}
}

// deaf is a backend that can't ask holders.
type deaf struct{ *memlock.Backend }

// Caps returns what it can do.
func (d deaf) Caps() driver.Caps {
	c := d.Backend.Caps()
	c.Revocable = 0
	return c
}

// TestKeyboard uses the page without a mouse, in Chinese, and with little motion.
func TestKeyboard(t *testing.T) {
	r := start(t, memlock.New(), server.Options{})
	r.acquire(driver.Request{Hold: driver.Hold{Name: "a"}})
	r.acquire(driver.Request{Hold: driver.Hold{Name: "b"}})
	p := r.open("/")
	p.language("zh-CN")
	p.visit(r.url + "/")
	p.shows("持有者")
	p.until("document.documentElement.lang === 'zh-CN'")
	live := "document.getElementById('live').classList.contains('on')" // its script listens to keys
	p.until(live)
	p.must(p.Keyboard.Type(input.Slash))
	p.until("document.activeElement.name === 'prefix'")
	p.must(p.Keyboard.Type(input.KeyB, input.Enter))
	p.until("location.search === '?prefix=b' && document.querySelectorAll('#rows tr').length === 1 && " + live)
	p.eval("document.querySelector('#rows a').focus()")
	p.must(p.Keyboard.Type(input.Enter))
	p.until("location.pathname === '/lock' && " + live)
	p.eval("document.querySelector('[data-break]').focus()")
	p.must(p.Keyboard.Type(input.Enter))
	p.until("document.getElementById('break').open")
	p.must(p.Keyboard.Type(input.Escape))
	p.until("!document.getElementById('break').open && 'break' in document.activeElement.dataset")
}

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
			expect.Equal(t, p.eval("violations"), "", page[0], "the policy forbids")
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
		resp := must.Get(http.Post(r.url+path, "application/json", strings.NewReader(body)))(r)
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
