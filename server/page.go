package server

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
)

// policy lets a page use the server's own files, and nothing else. No script or style is part of a page.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// html answers with a page.
func (c *exchange) html(status int, name string, data any) error {
	text := c.s.page.render(c.language(), name, data)
	h := c.w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", policy)
	h.Set("Vary", "Accept-Language")
	c.w.WriteHeader(status)
	_, err := c.w.Write(text)
	return err
}

// failPage answers a person with the error. An unknown person may log in.
func (c *exchange) failPage(err error) httpwire.Kind {
	p, next := problemOf(err), c.r.URL.RequestURI()
	if c.r.Method == "POST" { // an action, which can't be repeated with GET; its query names the lock
		next = "/lock?" + c.r.URL.RawQuery
	}
	switch {
	case c.w.status != 0:
	case p.Status == http.StatusUnauthorized && c.r.Method == "GET" && c.r.Header.Get("Sec-Fetch-Site") == "cross-site":
		// The cookie is not sent along with a link in another site, but it is with a page's own.
		_ = c.html(http.StatusOK, "again", next)
	case p.Status == http.StatusUnauthorized:
		c.redirect("/login?next=" + url.QueryEscape(next))
	default:
		_ = c.html(p.Status, "error", struct {
			frame
			httpwire.Problem
		}{c.frame("error"), p})
	}
	return p.Kind
}

func (c *exchange) redirect(to string) {
	http.Redirect(c.w, c.r, to, http.StatusSeeOther)
}

// asset answers with a file that pages need.
func (c *exchange) asset() error {
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
func (c *exchange) showLogin() error {
	if c.s.o.Access == nil {
		c.redirect("/")
		return nil
	}
	return c.loginForm(http.StatusOK, false, c.r.URL.Query().Get("next"))
}

func (c *exchange) loginForm(status int, wrong bool, next string) error {
	return c.html(status, "login", struct {
		frame
		Wrong bool
		Next  string
	}{c.frame("login"), wrong, next})
}

// form reads the body of the request, a form.
func (c *exchange) form() (url.Values, error) {
	body, err := c.body(httpwire.MaxBody)
	if err != nil {
		return nil, err
	}
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return nil, invalid("the body is not a form")
	}
	return form, nil
}

// login keeps a token in a cookie, if it is one that the server knows.
func (c *exchange) login() error {
	form, err := c.form()
	if err != nil {
		return err
	}
	token := strings.TrimSpace(form.Get("token"))
	if c.s.o.Access == nil {
		c.redirect("/")
		return nil
	}
	known := c.r.Clone(c.r.Context())
	known.Header, known.TLS = http.Header{"Authorization": {"Bearer " + token}}, nil // a certificate makes no token known
	who, err := c.s.o.Access.identify(known)
	if token == "" || err != nil {
		return c.loginForm(http.StatusUnauthorized, true, form.Get("next"))
	}
	c.who = who
	c.setCookie(token, 0)
	c.redirect(local(form.Get("next")))
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

func (c *exchange) logout() error {
	c.setCookie("", -1)
	c.redirect("/login")
	return nil
}

func (c *exchange) setCookie(token string, age int) {
	secure := c.r.TLS != nil || c.r.Header.Get("X-Forwarded-Proto") == "https" // which a proxy says that ends TLS
	http.SetCookie(c.w, &http.Cookie{
		Name: cookie, Value: token, Path: "/", MaxAge: age, HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: secure,
	})
}

// act asks for a lock or breaks it, for a person. The query has the lock's name, and the form the fence of the
// hold and, to break it, the name as the person has typed it.
func (c *exchange) act(right Right) error {
	name := c.r.URL.Query().Get("name")
	if err := c.lockName(name); err != nil {
		return err
	}
	if err := c.may(right, name); err != nil {
		return err
	}
	form, err := c.form()
	if err != nil {
		return err
	}
	fence, err := strconv.ParseUint(form.Get("fence"), 10, 64)
	if err != nil || fence == 0 {
		return invalid("want the fence of the hold")
	}
	if right == Break && form.Get("confirm") != shown(name) {
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

// language returns the language that the viewer wants most, as an index of languages.
func (c *exchange) language() int {
	best, quality := 0, 0.0
	for _, part := range strings.Split(c.r.Header.Get("Accept-Language"), ",") {
		tag, options, _ := strings.Cut(strings.TrimSpace(part), ";")
		q := 1.0
		if text, ok := strings.CutPrefix(strings.TrimSpace(options), "q="); ok {
			q, _ = strconv.ParseFloat(text, 64)
		}
		primary, _, _ := strings.Cut(strings.ToLower(tag), "-")
		for i, lang := range languages {
			if own, _, _ := strings.Cut(lang, "-"); own == primary && q > quality {
				best, quality = i, q
			}
		}
	}
	return best
}

// frame is the part that all pages share.
type frame struct {
	Page      string
	Lang      string
	Backend   string
	Who       string
	Version   string
	Began     time.Time
	Now       time.Time
	Events    string // where changes come from; "": there are none
	Known     bool   // the server has identified the viewer; other viewers see nothing of it
	CanLogout bool
}

func (c *exchange) frame(page string) frame {
	if c.who == noIdentity {
		return frame{Page: page, Lang: languages[c.language()], Now: time.Now()}
	}
	return frame{
		Page: page, Lang: languages[c.language()], Backend: shown(c.s.caps.Name), Who: c.who.Name, Version: cmp.Or(c.s.o.Version, "devel"),
		Began: c.s.seen.began, Now: time.Now(), Known: true, CanLogout: c.s.o.Access != nil,
	}
}
