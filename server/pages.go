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
func (ex *exchange) page() page.Answer {
	who := ex.who
	may := func(r Right) func(string) bool {
		return func(name string) bool { return who.May(r, name) }
	}
	return page.Answer{ResponseWriter: ex.w, Request: ex.r, Viewer: page.Viewer{
		Name: who.Name, Known: who != noIdentity, CanLogout: ex.s.o.Access != nil, See: may(See), Ask: may(Ask), Break: may(Break), Rights: who,
	}}
}

// maySee returns an error if the caller may not see what a page shows.
func (ex *exchange) maySee(q page.Query) error {
	if q.Page == "lock" {
		if err := ex.lockName(q.Name); err != nil {
			return err
		}
		return ex.may(See, q.Name)
	}
	if !ex.who.sees(q.Prefix) {
		return ex.may(See, q.Prefix)
	}
	return nil
}

// show answers with a page.
func (ex *exchange) show(name string) error {
	q := page.ParseQuery(name, ex.r.URL.Query())
	if err := ex.maySee(q); err != nil {
		return err
	}
	return ex.s.page.Show(ex.page(), q)
}

// changes sends a page what has changed, as long as it is open.
func (ex *exchange) changes() error {
	if err := ex.noBody(); err != nil {
		return err
	}
	values, err := ex.query("page", "prefix", "sort", "name")
	if err != nil {
		return err
	}
	q := page.ParseQuery(cmp.Or(values.Get("page"), "locks"), values)
	if !slices.Contains(page.Live, q.Page) {
		return invalid("page is %.20q: want one of: %s", q.Page, strings.Join(page.Live, ", "))
	}
	if err := ex.maySee(q); err != nil {
		return err
	}
	return ex.follow(func(ctx context.Context, e *events) error {
		own := e.c // ex would keep the buffers of net/http
		w := own.s.page.Watch(q)
		defer w.Close()
		return e.forward(ctx, httpwire.EventHello, w.Fresh, func() error {
			if err := own.maySee(q); err != nil {
				return err
			}
			change := w.Changes(ctx, own.page().Viewer, page.Language(own.r))
			if change == nil {
				return nil
			}
			return e.sendText("change", change)
		})
	})
}

// failPage answers a person with the error. An unknown person may log in.
func (ex *exchange) failPage(err error) httpwire.Kind {
	p, next := problemOf(err), ex.r.URL.RequestURI()
	if ex.r.Method == "POST" { // an action, which can't be repeated with GET; its query names the lock
		next = "/lock?" + ex.r.URL.RawQuery
	}
	switch {
	case ex.w.status != 0:
	case p.Status == http.StatusUnauthorized && ex.r.Method == "GET" && ex.r.Header.Get("Sec-Fetch-Site") == "cross-site":
		// The cookie is not sent along with a link in another site, but it is with a page's own.
		_ = ex.s.page.Again(ex.page(), next)
	case p.Status == http.StatusUnauthorized:
		ex.redirect("/login?next=" + url.QueryEscape(next))
	default:
		_ = ex.s.page.Fail(ex.page(), p)
	}
	return p.Kind
}

func (ex *exchange) redirect(to string) {
	http.Redirect(ex.w, ex.r, to, http.StatusSeeOther)
}

// asset answers with a file that pages need.
func (ex *exchange) asset() error {
	found, err := ex.s.page.Asset(ex.w, ex.r, ex.r.PathValue("asset"))
	if !found {
		return problem(http.StatusNotFound, httpwire.Invalid, "there is no such file")
	}
	return err
}

// showLogin shows the form for a token.
func (ex *exchange) showLogin() error {
	if ex.s.o.Access == nil {
		ex.redirect("/")
		return nil
	}
	return ex.s.page.Login(ex.page(), http.StatusOK, false, ex.r.URL.Query().Get("next"))
}

// form reads the body of the request, a form.
func (ex *exchange) form() (url.Values, error) {
	body, err := ex.body(httpwire.MaxBody)
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
func (ex *exchange) login() error {
	form, err := ex.form()
	if err != nil {
		return err
	}
	token := strings.TrimSpace(form.Get("token"))
	if ex.s.o.Access == nil {
		ex.redirect("/")
		return nil
	}
	known := ex.r.Clone(ex.r.Context())
	known.Header, known.TLS = http.Header{"Authorization": {"Bearer " + token}}, nil // a certificate makes no token known
	who, err := ex.s.o.Access.identify(known)
	if token == "" || err != nil {
		return ex.s.page.Login(ex.page(), http.StatusUnauthorized, true, form.Get("next"))
	}
	ex.who = who
	ex.setCookie(token, 0)
	ex.redirect(local(form.Get("next")))
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

func (ex *exchange) logout() error {
	ex.setCookie("", -1)
	ex.redirect("/login")
	return nil
}

func (ex *exchange) setCookie(token string, age int) {
	secure := ex.r.TLS != nil || ex.r.Header.Get("X-Forwarded-Proto") == "https" // which a proxy says that ends TLS
	http.SetCookie(ex.w, &http.Cookie{
		Name: cookie, Value: token, Path: "/", MaxAge: age, HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: secure,
	})
}

// act asks for a lock or breaks it, for a person. The query has the lock's name, and the form the fence of the
// hold and, to break it, the name as the person has typed it.
func (ex *exchange) act(right Right) error {
	name := ex.r.URL.Query().Get("name")
	if err := ex.lockName(name); err != nil {
		return err
	}
	if err := ex.may(right, name); err != nil {
		return err
	}
	form, err := ex.form()
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
	ctx, cancel := context.WithTimeout(ex.r.Context(), callTimeout)
	defer cancel()
	h, err := ex.holder(name, httpwire.Ask{Fence: fence})
	if err == nil {
		err = ex.forHolder(ctx, right, h, fence)
	}
	done := right.String()
	if errors.Is(err, driver.ErrLost) {
		done, err = "gone", nil
	}
	if err != nil {
		return err
	}
	ex.redirect("/lock?" + url.Values{"name": {name}, "done": {done}}.Encode())
	return nil
}
