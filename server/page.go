package server

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/maphash"
	"html/template"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
)

// pages are the calls of the page for people. A browser whose user is not known is sent to /login.
var pages = map[string]handler{
	"GET /{$}":         func(c *call) error { return c.show("locks") },
	"GET /lock":        func(c *call) error { return c.show("lock") },
	"GET /hot":         func(c *call) error { return c.show("hot") },
	"GET /losses":      func(c *call) error { return c.show("losses") },
	"GET /backend":     func(c *call) error { return c.show("backend") },
	"POST /lock/ask":   func(c *call) error { return c.act(Ask) },
	"POST /lock/break": func(c *call) error { return c.act(Break) },
}

// openPages are those for everybody.
var openPages = map[string]handler{
	"GET /login":        (*call).showLogin,
	"POST /login":       (*call).login,
	"POST /logout":      (*call).logout,
	"GET /page/{asset}": (*call).asset,
}

//go:embed page
var pageFiles embed.FS

// page has what all pages are made of.
type page struct {
	templates [len(languages)]*template.Template
	assets    map[string][]byte
	version   string // of the assets
}

// piece is a part of a page that is sent again when it has changed.
type piece struct {
	ID   string        `json:"id"`
	HTML template.HTML `json:"html"`
	sum  uint64        // of what is not volatile
}

// volatile is what page.js keeps up to date by itself: times that run, and their bars.
var volatile = regexp.MustCompile(`>[^<]*</time>|width="\d+%"|data-tone="\w+"`)

var sumSeed = maphash.MakeSeed()

var assetTypes = map[string]string{".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}

func newPage() *page {
	p := &page{assets: map[string][]byte{}}
	sum := sha256.New()
	files, err := pageFiles.ReadDir("page")
	if err != nil {
		panic(err) // they are embedded
	}
	for _, f := range files {
		text, err := pageFiles.ReadFile("page/" + f.Name())
		if err != nil {
			panic(err)
		}
		if assetTypes[path.Ext(f.Name())] != "" {
			p.assets[f.Name()] = text
			sum.Write(text)
		}
	}
	p.version = hex.EncodeToString(sum.Sum(nil)[:6])
	for i := range languages {
		funcs := template.FuncMap{
			"t":     func(key string, args ...any) string { return text(i, key, args...) },
			"asset": func(name string) string { return "/page/" + name + "?v=" + p.version },
			"ms":    time.Time.UnixMilli, "clock": clock, "shown": shown, "span": span, "ago": func(t time.Time) string { return span(time.Since(t)) },
			"until": time.Until, "modes": modes, "left": left, "latency": latency, "percent": percent, "chart": chart, "rate": rate, "tone": tone, "id": lockID, "modeOf": modeOf,
		}
		p.templates[i] = template.Must(template.New("").Funcs(funcs).ParseFS(pageFiles, "page/*.html"))
	}
	return p
}

// piece makes a piece of a page.
func (p *page) piece(lang int, name, id string, data any) piece {
	html := p.render(lang, name, data)
	return piece{id, template.HTML(html), maphash.Bytes(sumSeed, volatile.ReplaceAll(html, nil))}
}

func (p *page) render(lang int, name string, data any) []byte {
	var b bytes.Buffer
	if err := p.templates[lang].ExecuteTemplate(&b, name, data); err != nil {
		panic(err) // tests make every page
	}
	return b.Bytes()
}

// policy lets a page use the server's own files, and nothing else. No script or style is part of a page.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// html answers with a page.
func (c *call) html(status int, name string, data any) error {
	text := c.s.page.render(c.language(), name, data)
	h := c.w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", policy)
	h.Set("Cache-Control", "no-store")
	h.Set("Vary", "Accept-Language")
	c.w.WriteHeader(status)
	_, err := c.w.Write(text)
	return err
}

// failPage answers a person with the error. One who is not known may log in.
func (c *call) failPage(err error) httpwire.Kind {
	p := problemOf(err)
	switch {
	case c.w.status != 0:
	case p.Status == http.StatusUnauthorized && c.r.Method == "GET" && c.r.Header.Get("Sec-Fetch-Site") == "cross-site":
		// The cookie is not sent along with a link in another site, but it is with a page's own.
		_ = c.html(http.StatusOK, "again", c.r.URL.String())
	case p.Status == http.StatusUnauthorized:
		c.redirect("/login?next=" + url.QueryEscape(c.r.URL.RequestURI()))
	default:
		_ = c.html(p.Status, "error", struct {
			frame
			httpwire.Problem
		}{c.frame("error"), p})
	}
	return p.Kind
}

func (c *call) redirect(to string) {
	c.w.Header().Set("Cache-Control", "no-store")
	http.Redirect(c.w, c.r, to, http.StatusSeeOther)
}

// asset answers with a file that pages need.
func (c *call) asset() error {
	name := c.r.PathValue("asset")
	text, ok := c.s.page.assets[name]
	if !ok {
		return problem(http.StatusNotFound, httpwire.Invalid, "there is no such file")
	}
	c.w.Header().Set("Content-Type", assetTypes[path.Ext(name)])
	c.w.Header().Set("Cache-Control", "no-cache")
	if c.r.URL.RawQuery == "v="+c.s.page.version {
		c.w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	_, err := c.w.Write(text)
	return err
}

// showLogin shows the form for a token.
func (c *call) showLogin() error {
	if c.s.o.Access == nil {
		c.redirect("/")
		return nil
	}
	return c.loginForm(http.StatusOK, false)
}

func (c *call) loginForm(status int, wrong bool) error {
	return c.html(status, "login", struct {
		frame
		Wrong bool
		Next  string
	}{c.frame("login"), wrong, c.r.FormValue("next")})
}

// login keeps a token in a cookie, if it is one that the server knows.
func (c *call) login() error {
	c.r.Body = http.MaxBytesReader(c.w, c.r.Body, httpwire.MaxBody)
	token := strings.TrimSpace(c.r.PostFormValue("token"))
	if c.s.o.Access == nil {
		c.redirect("/")
		return nil
	}
	known := c.r.Clone(c.r.Context())
	known.Header = http.Header{"Authorization": {"Bearer " + token}}
	who, err := c.s.o.Access.identify(known)
	if token == "" || err != nil {
		return c.loginForm(http.StatusUnauthorized, true)
	}
	c.who = who
	c.setCookie(token, 0)
	c.redirect(local(c.r.PostFormValue("next")))
	return nil
}

// local returns a path of this server, which is / if a request names another place.
func local(next string) string {
	u, err := url.Parse(next)
	if err != nil || u.Scheme != "" || u.Host != "" || !strings.HasPrefix(next, "/") || strings.HasPrefix(next, "//") || strings.Contains(next, `\`) {
		return "/"
	}
	return next
}

func (c *call) logout() error {
	c.setCookie("", -1)
	c.redirect("/login")
	return nil
}

func (c *call) setCookie(token string, age int) {
	secure := c.r.TLS != nil || c.r.Header.Get("X-Forwarded-Proto") == "https" // which a proxy says that ends TLS
	http.SetCookie(c.w, &http.Cookie{
		Name: cookie, Value: token, Path: "/", MaxAge: age, HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: secure,
	})
}

// act asks for a lock or breaks it, for a person. The query has the lock's name, and the form the fence of the
// hold and, to break it, the name as the person has typed it.
func (c *call) act(right Right) error {
	name := c.r.URL.Query().Get("name")
	if err := c.lockName(name); err != nil {
		return err
	}
	if err := c.may(right, name); err != nil {
		return err
	}
	c.r.Body = http.MaxBytesReader(c.w, c.r.Body, httpwire.MaxBody)
	fence, err := strconv.ParseUint(c.r.PostFormValue("fence"), 10, 64)
	if err != nil || fence == 0 {
		return invalid("want the fence of the hold")
	}
	if right == Break && c.r.PostFormValue("confirm") != shown(name) {
		return invalid("the name that was typed is not the lock's: nothing was done")
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), callTimeout)
	defer cancel()
	h, err := c.holder(name, httpwire.Ask{Fence: fence})
	if err == nil {
		err = c.forHolder(ctx, right, h, fence)
	}
	done := right.String()
	if errors.Is(err, driver.ErrLost) {
		done, err = "gone", nil
	}
	if err != nil {
		return err
	}
	c.redirect("/lock?" + url.Values{"name": {name}, "done": {done}}.Encode())
	return nil
}

// lockID identifies a lock's elements in a page.
func lockID(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:8])
}

// shown returns a text so that all of it can be seen and typed.
func shown(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		s = strconv.Quote(s)
		return s[1 : len(s)-1]
	}
	return s
}

// span formats a time of seconds to days, as page.js does.
func span(d time.Duration) string {
	s := int(max(d, 0).Seconds())
	switch {
	case s < 60:
		return fmt.Sprintf("%ds", s)
	case s < 3600:
		return fmt.Sprintf("%dm %02ds", s/60, s%60)
	case s < 86400:
		return fmt.Sprintf("%dh %02dm", s/3600, s/60%60)
	}
	return fmt.Sprintf("%dd %02dh", s/86400, s/3600%24)
}

// latency formats a short time.
func latency(d time.Duration) string {
	switch {
	case d >= time.Minute:
		return span(d)
	case d >= 10*time.Second:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d >= time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d >= 10*time.Millisecond:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d >= time.Millisecond:
		return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
	}
	return fmt.Sprintf("%d µs", d.Microseconds())
}

// rate formats how often something happens in a second.
func rate(perSecond float64) string {
	switch {
	case perSecond >= 10:
		return fmt.Sprintf("%.0f/s", perSecond)
	case perSecond >= .1:
		return fmt.Sprintf("%.1f/s", perSecond)
	case perSecond > 0:
		return fmt.Sprintf("%.0f/min", 60*perSecond)
	}
	return "0"
}

func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// left returns how much of a hold's TTL is left, in percent.
func left(p party) int {
	if p.TTL <= 0 {
		return 0
	}
	return min(max(int(100*time.Until(p.Until)/p.TTL), 0), 100)
}

// tone says how late a renewal is: holders renew after a third of the TTL.
func tone(percent int) string {
	switch {
	case percent < 10:
		return "bad"
	case percent < 34:
		return "late"
	}
	return "good"
}

func percent(share float64) int { return int(100*share + .5) }

func modes(set driver.ModeSet) (all []driver.Mode) {
	for m := driver.Exclusive; m <= driver.Counted; m++ {
		if set.Has(m) {
			all = append(all, m)
		}
	}
	return all
}

// modeOf is the mode of a lock as a key of texts.
func modeOf(m driver.Mode) string {
	if m == 0 {
		return "mode.free"
	}
	return "mode." + m.String()
}

const chartWidth, chartHeight = 120, 28

// chart returns the path of bars that show values over time, and the greatest value.
func chart(values []float64) (c struct {
	Bars string
	Top  float64
}) {
	for _, v := range values {
		c.Top = max(c.Top, v)
	}
	var path strings.Builder
	width := chartWidth / float64(max(len(values), 1))
	for i, v := range values {
		if v > 0 {
			fmt.Fprintf(&path, "M%.1f %dV%.1fh%.1fV%dz", float64(i)*width, chartHeight, (chartHeight-1)*(1-v/c.Top), width*.75, chartHeight)
		}
	}
	c.Bars = path.String()
	return c
}
