package page

import (
	"net/http"
	"path"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
)

// Policy lets a page use the server's own files, and nothing else. No script or style is part of a page.
const Policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// Answer is what a page is written to, for whom.
type Answer struct {
	http.ResponseWriter
	Request *http.Request
	Viewer  Viewer
}

// Show answers with a page.
func (p *Page) Show(a Answer, q Query) error {
	v := &view{p, a.Viewer, Language(a.Request), q}
	snap := p.poller.current(a.Request.Context(), q.Name)
	f := p.frame(a, q.Page)
	f.Events = q.events()
	groups := map[string][]piece{}
	for _, g := range v.groups(snap) {
		groups[g.ID] = g.Pieces
	}
	return p.html(a, http.StatusOK, q.Page, struct {
		frame
		Query  Query
		Groups map[string][]piece
		Caps   driver.Caps
		Row    guarantee
	}{f, q, groups, p.o.Caps, guaranteeOf(p.o.Caps.Name, v.lang)})
}

// Fail answers with an error.
func (p *Page) Fail(a Answer, problem httpwire.Problem) error {
	return p.html(a, problem.Status, "error", struct {
		frame
		httpwire.Problem
	}{p.frame(a, "error"), problem})
}

// Again answers with a page that goes on to another one of the server.
func (p *Page) Again(a Answer, next string) error { return p.html(a, http.StatusOK, "again", next) }

// Login answers with the form for a token, which says so if the last one was wrong, and goes on to next.
func (p *Page) Login(a Answer, status int, wrong bool, next string) error {
	return p.html(a, status, "login", struct {
		frame
		Wrong bool
		Next  string
	}{p.frame(a, "login"), wrong, next})
}

// Asset answers with a file that pages need. It reports whether there is one of this name.
func (p *Page) Asset(w http.ResponseWriter, r *http.Request, name string) (found bool, err error) {
	text, ok := p.files.assets[name]
	if !ok {
		return false, nil
	}
	w.Header().Set("Content-Type", assetTypes[path.Ext(name)])
	w.Header().Set("Cache-Control", "no-cache")
	if r.URL.RawQuery == "v="+p.files.version {
		w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	_, err = w.Write(text)
	return true, err
}

func (p *Page) html(a Answer, status int, name string, data any) error {
	text := p.files.render(Language(a.Request), name, data)
	h := a.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", Policy)
	h.Set("Vary", "Accept-Language")
	a.WriteHeader(status)
	_, err := a.Write(text)
	return err
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
	Known     bool
	CanLogout bool
}

func (p *Page) frame(a Answer, page string) frame {
	f := frame{Page: page, Lang: languages[Language(a.Request)], Now: time.Now()}
	if who := a.Viewer; who.Known {
		f.Known, f.Who, f.CanLogout = true, who.Name, who.CanLogout
		f.Backend, f.Version, f.Began = Shown(p.o.Caps.Name), p.o.Version, p.o.Seen.Began
	}
	return f
}
