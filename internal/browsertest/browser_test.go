// Package browsertest uses the page of a server in a browser. It is a module of its own, so that no other
// module requires what controls the browser.
package browsertest

import (
	"errors"
	"flag"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-rod/rod"
	"github.com/go-rod/rod/lib/cdp"
	"github.com/go-rod/rod/lib/proto"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/distlock/distlock/server"
)

var screens = flag.String("screens", "", "folder for screenshots of TestLongScreens; none without it")

func TestMain(m *testing.M) {
	if url := os.Getenv("HOLDER_URL"); url != "" {
		hold(url)
	}
	os.Exit(testserver.Run(m))
}

// rig is a browser before a server.
type rig struct {
	*testing.T
	backend driver.Backend
	url     string
	browser *rod.Browser
}

func start(t *testing.T, b driver.Backend, o server.Options) *rig {
	t.Helper()
	s := must.Get(server.New(b, o))(t)
	h := httptest.NewServer(s)
	t.Cleanup(func() {
		h.CloseClientConnections()
		h.Close()
		b.Close()
	})
	browser := rod.New().ControlURL(testserver.Browser(t).Control())
	must.OK(t, browser.Connect())
	return &rig{t, b, h.URL, browser}
}

// open opens a page in a session of its own.
func (r *rig) open(path string) *page {
	r.Helper()
	session := must.Get(r.browser.Incognito())(r)
	return r.visit(session, path)
}

func (r *rig) visit(session *rod.Browser, path string) *page {
	r.Helper()
	p := must.Get(session.Page(proto.TargetCreateTarget{URL: "about:blank"}))(r)
	pg := &page{r.T, p.Timeout(patience)}
	pg.size(1280, 800, false)
	_, err := p.EvalOnNewDocument("window.violations = []; document.addEventListener('securitypolicyviolation', e => violations.push(e.violatedDirective + ' ' + e.blockedURI))")
	pg.must(err)
	pg.visit(r.url + path)
	return pg
}

// patience is how long the page may take on a busy machine.
const patience = 2 * time.Minute

// page is a tab. Its methods fail the test.
type page struct {
	t *testing.T
	*rod.Page
}

func (p *page) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *page) visit(url string) {
	p.t.Helper()
	p.must(p.Navigate(url))
	p.must(p.WaitLoad())
}

func (p *page) size(width, height int, phone bool) {
	p.t.Helper()
	p.must(p.SetViewport(&proto.EmulationSetDeviceMetricsOverride{Width: width, Height: height, DeviceScaleFactor: 1, Mobile: phone}))
}

// language makes the tab ask for pages in a language. An extra header would not do: Chromium replaces it when it navigates.
func (p *page) language(tag string) {
	p.t.Helper()
	p.must(p.SetUserAgent(&proto.NetworkSetUserAgentOverride{UserAgent: p.eval("navigator.userAgent"), AcceptLanguage: tag}))
}

// eval returns the value of a JavaScript expression as text.
func (p *page) eval(js string) string {
	p.t.Helper()
	v, err := p.Eval("async () => String(" + js + ")")
	p.must(err)
	return v.Value.Str()
}

// until waits until a JavaScript expression is true. Before that the expression may throw, and the tab may navigate.
func (p *page) until(js string) {
	p.t.Helper()
	script := rod.Eval("() => { try { return " + js + " } catch { return false } }")
	err := p.Wait(script)
	for isNavigation(err) && p.GetContext().Err() == nil {
		err = p.Wait(script)
	}
	if err != nil {
		text := "?"
		if v, err := p.Eval("() => document.body.innerText"); err == nil {
			text = v.Value.Str()
		}
		p.t.Fatalf("not true: %s: %v\n%s", js, err, text)
	}
}

// isNavigation reports whether the tab went to another document while a script ran.
func isNavigation(err error) bool {
	e := (*cdp.Error)(nil)
	return errors.As(err, &e) && (strings.Contains(e.Message, "navigated") || strings.Contains(e.Message, "context was destroyed"))
}

// shows waits until the main part of the page has a text.
func (p *page) shows(text string) {
	p.t.Helper()
	p.until(fmt.Sprintf("document.querySelector('main').innerText.includes(%q)", text))
}

func (p *page) lacks(text string) {
	p.t.Helper()
	p.until(fmt.Sprintf("!document.querySelector('main').innerText.includes(%q)", text))
}

// click clicks an element, which it finds by a selector.
func (p *page) click(selector string) {
	p.t.Helper()
	for {
		e, err := p.Element(selector)
		p.must(err)
		err = e.Click(proto.InputMouseButtonLeft, 1)
		if err == nil {
			return
		}
		if !strings.Contains(err.Error(), "detached") { // it was replaced meanwhile
			p.t.Fatal(err)
		}
	}
}

func (p *page) write(selector, text string) {
	p.t.Helper()
	e, err := p.Element(selector)
	p.must(err)
	p.must(e.Input(text))
}

func (p *page) shot(name string) {
	p.t.Helper()
	if *screens == "" {
		return
	}
	png, err := p.Screenshot(false, &proto.PageCaptureScreenshot{Format: proto.PageCaptureScreenshotFormatPng})
	p.must(err)
	p.must(os.WriteFile(filepath.Join(*screens, name+".png"), png, 0o600))
}

// acquire takes a lock at the backend, or a place in its queue.
func (r *rig) acquire(q driver.Request) driver.Grant {
	r.Helper()
	q.Fences = max(q.Fences, 1)
	if q.Owner == "" {
		q.Owner = driver.NewOwner()
	}
	if q.Mode == 0 {
		q.Mode = driver.Exclusive
	}
	if q.TTL == 0 {
		q.TTL = time.Hour
	}
	g, err := r.backend.Acquire(r.Context(), q)
	if err != nil && !q.Queue {
		r.Fatal(err)
	}
	return g
}

func meta(program, host string) map[string]string {
	return map[string]string{"program": program, "pid": "4711", "host": host}
}

// access makes a server's list of identities.
func access(t *testing.T, lines ...string) *server.Access {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tokens")
	text := ""
	for _, line := range lines {
		text += line + "\n"
	}
	must.OK(t, os.WriteFile(path, []byte(text), 0o600))
	a := must.Get(server.OpenAccess(path, nil))(t)
	return a
}
