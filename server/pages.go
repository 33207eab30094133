package server

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
	"github.com/distlock/distlock/server/internal/page"
)

// page returns where a page is written to, and for whom.
func (c *exchange) page() page.Answer {
	who := c.who
	may := func(r Right) func(string) bool {
		return func(name string) bool { return who.May(r, name) }
	}
	return page.Answer{ResponseWriter: c.w, Request: c.r, Viewer: page.Viewer{
		Name: who.Name, Known: who != noIdentity, CanLogout: c.s.o.Access != nil, See: may(See), Ask: may(Ask), Break: may(Break),
	}}
}

// maySee returns an error if the caller may not see what a page shows.
func (c *exchange) maySee(q page.Query) error {
	if q.Page == "lock" {
		if err := c.lockName(q.Name); err != nil {
			return err
		}
		return c.may(See, q.Name)
	}
	if !c.who.sees(q.Prefix) {
		return c.may(See, q.Prefix)
	}
	return nil
}

// show answers with a page.
func (c *exchange) show(name string) error {
	q := page.ParseQuery(name, c.r.URL.Query())
	if err := c.maySee(q); err != nil {
		return err
	}
	return c.s.page.Show(c.page(), q)
}

// changes sends a page what has changed, as long as it is open.
func (c *exchange) changes() error {
	if err := c.noBody(); err != nil {
		return err
	}
	values, err := c.query("page", "prefix", "sort", "name")
	if err != nil {
		return err
	}
	q := page.ParseQuery(cmp.Or(values.Get("page"), "locks"), values)
	if !slices.Contains(page.Live, q.Page) {
		return invalid("page is %.20q: want one of: %s", q.Page, strings.Join(page.Live, ", "))
	}
	if err := c.maySee(q); err != nil {
		return err
	}
	ctx, end, err := c.stream()
	if err != nil {
		return err
	}
	defer end()
	w := c.s.page.Watch(q)
	defer w.Close()
	e := c.events()
	return e.forward(ctx, httpwire.EventHello, w.Fresh, func() error {
		if err := c.maySee(q); err != nil {
			return err
		}
		change := w.Changes(ctx, c.page().Viewer, page.Language(c.r))
		if change == nil {
			return nil
		}
		return e.send("change", change)
	})
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
		_ = c.s.page.Again(c.page(), next)
	case p.Status == http.StatusUnauthorized:
		c.redirect("/login?next=" + url.QueryEscape(next))
	default:
		_ = c.s.page.Fail(c.page(), p)
	}
	return p.Kind
}

func (c *exchange) redirect(to string) {
	http.Redirect(c.w, c.r, to, http.StatusSeeOther)
}

// asset answers with a file that pages need.
func (c *exchange) asset() error {
	found, err := c.s.page.Asset(c.w, c.r, c.r.PathValue("asset"))
	if !found {
		return problem(http.StatusNotFound, httpwire.Invalid, "there is no such file")
	}
	return err
}

// showLogin shows the form for a token.
func (c *exchange) showLogin() error {
	if c.s.o.Access == nil {
		c.redirect("/")
		return nil
	}
	return c.s.page.Login(c.page(), http.StatusOK, false, c.r.URL.Query().Get("next"))
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
		return c.s.page.Login(c.page(), http.StatusUnauthorized, true, form.Get("next"))
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
	if right == Break && form.Get("confirm") != page.Shown(name) {
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
