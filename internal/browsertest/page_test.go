package browsertest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-rod/rod/lib/input"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
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
	if err := holder.Process.Kill(); err != nil {
		t.Fatal(err)
	}
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
	if got := p.eval("document.getElementById('break-shown').textContent"); got != strconv.FormatUint(g.Fence, 10) {
		t.Errorf("the dialog shows fence %s", got)
	}
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
	if n := p.eval("document.querySelectorAll('script').length"); n != "1" {
		t.Errorf("%s scripts", n)
	}
}

// holder starts a process that holds a lock, and renews it until it is killed.
func (r *rig) holder(name string) *exec.Cmd {
	r.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), "HOLDER_URL="+r.url, "HOLDER_NAME="+name)
	if err := testserver.Spawn(cmd); err != nil {
		r.Fatal(err)
	}
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
	if p.eval("document.cookie") != "" {
		t.Error("scripts can read the cookie")
	}
	if n := p.eval("document.querySelectorAll('[data-break], form[action^=\"/lock/ask\"]').length"); n != "0" {
		t.Errorf("%s buttons for one without the right", n)
	}
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
	if p.eval("document.querySelector('thead').getBoundingClientRect().top >= 0") != "true" {
		t.Error("the titles of the columns can't be seen")
	}
	p.eval("(window.first = document.querySelector('#rows tr'), window.last = [...document.querySelectorAll('#rows tr')].at(-1), 0)")
	r.acquire(driver.Request{Hold: driver.Hold{Name: "lock-0999", Owner: driver.NewOwner()}, Queue: true})
	p.until("[...document.querySelectorAll('#rows tr')].at(-1).textContent.includes('lock-0999') && !last.isConnected")
	if p.eval("first.isConnected") != "true" {
		t.Error("a row that had not changed was replaced")
	}
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
