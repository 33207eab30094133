package server

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
	"github.com/distlock/distlock/server/internal/page"
	"github.com/distlock/distlock/server/internal/seen"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// New returns a server for a backend, which the caller closes after the server. It returns ErrUnsupported if the
// backend's Caps are not Detached.
func New(b driver.Backend, o Options) (*Server, error) {
	caps := b.Caps()
	if !caps.Detached {
		return nil, fmt.Errorf("%w: %s can't be served: its locks belong to the connection that took them, so another server could not renew them", driver.ErrUnsupported, caps.Name)
	}
	o.MaxHolds, o.MaxStreams = cmp.Or(o.MaxHolds, 10_000), cmp.Or(o.MaxStreams, 1000)
	s := &Server{backend: b, caps: caps, o: o, mux: http.NewServeMux(), name: url.PathEscape(caps.Name), origin: http.NewCrossOriginProtection(), bodyTime: bodyTime}
	s.drained, s.drain = context.WithCancel(context.Background())
	context.AfterFunc(s.drained, s.workers.end)
	s.connections.most, s.quota.mostOpen = o.MaxConnections, o.MaxConnections*3/4
	s.seen = seen.New()
	s.metrics = newMetrics(&s.quota, s.seen)
	inspector, _ := b.(driver.Inspector)
	s.inspection = inspection{inspector, s.metrics, make(chan struct{}, listsAtOnce)}
	_, asks := b.(driver.Revoker)
	s.page = page.New(page.Options{Inspector: s.inspection, Seen: s.seen, Caps: caps, CanAsk: asks, Version: o.Version})
	s.routes()
	return s, nil
}

// calls are the calls of the API. Each is authorized, logged and measured.
var calls = map[string]handler{
	"GET /v1":                     (*exchange).hello,
	"POST /v1/acquire":            (*exchange).acquire,
	"POST /v1/renew":              (*exchange).renew,
	"POST /v1/release":            (*exchange).release,
	"GET /v1/calls":               (*exchange).calls,
	"POST /v1/watch":              (*exchange).watch,
	"GET /v1/news":                (*exchange).news,
	"GET /v1/locks":               (*exchange).list,
	"GET /v1/locks/{name}":        (*exchange).inspect,
	"POST /v1/locks/{name}":       (*exchange).simpleAcquire,
	"PUT /v1/locks/{name}":        (*exchange).simpleRenew,
	"DELETE /v1/locks/{name}":     (*exchange).simpleRelease,
	"POST /v1/locks/{name}/ask":   (*exchange).ask,
	"POST /v1/locks/{name}/break": (*exchange).breakLock,
	"GET /v1/events":              (*exchange).changes,
	"GET /metrics":                (*exchange).showMetrics,
}

// open are the calls that every client may make.
var open = map[string]func(*Server, http.ResponseWriter, *http.Request){
	"GET /healthz":         func(_ *Server, w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") },
	"GET /readyz":          (*Server).ready,
	"GET /v1/openapi.json": serveOpenAPI,
}

func (s *Server) routes() {
	for pattern, f := range calls {
		s.mux.Handle(pattern, s.serve(pattern, (*exchange).enter, f, (*exchange).fail))
	}
	for _, method := range []string{"GET", "POST", "PUT", "DELETE"} { // any other gets a 405
		below := method + " /v1/locks/{name}/{rest...}"
		s.mux.Handle(below, s.serve(below, (*exchange).enter, (*exchange).noSuchCall, (*exchange).fail))
	}
	for pattern, f := range pages {
		s.mux.Handle(pattern, s.serve(pattern, (*exchange).enter, f, (*exchange).failPage))
	}
	for pattern, f := range openPages {
		s.mux.Handle(pattern, s.serve(pattern, nil, f, (*exchange).failPage))
	}
	for pattern, f := range open {
		s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { f(s, w, r) })
	}
}

// ServeHTTP answers a request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w = &recorder{ResponseWriter: w}
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Referrer-Policy", "same-origin")
	if id := r.Header.Get(httpwire.RequestHeader); id != "" {
		w.Header().Set(httpwire.RequestHeader, id)
	}
	if r.ContentLength != 0 {
		// This holds until the body has arrived. One that no handler reads is skipped before the answer is sent.
		readBefore(w, time.Now().Add(s.bodyTime))
	}
	if !s.knowsHost(r.Host) {
		writeProblem(w, problem(http.StatusMisdirectedRequest, httpwire.Unsent, "the server is not known as %.100q; distlock serve --host adds a name", r.Host).Problem)
		return
	}
	if err := s.origin.Check(r); err != nil {
		writeProblem(w, problem(http.StatusForbidden, httpwire.Denied, "a page of another site made this request").Problem)
		return
	}
	if !isClean(r.URL.EscapedPath()) { // http.ServeMux would redirect the client to another lock
		writeProblem(w, problem(http.StatusNotFound, httpwire.Invalid, "the path has an empty segment, or one of dots or NUL: a name has %%2F for / and %%2E for a dot").Problem)
		return
	}
	s.mux.ServeHTTP(w, replaceSlashName(r))
}

// ready says whether new work is welcome.
func (s *Server) ready(w http.ResponseWriter, r *http.Request) {
	if s.drained.Err() != nil {
		http.Error(w, "draining", http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

// Drain makes the server refuse new acquires, and ends all that wait. Holds can still be renewed and
// released. It returns when all streams have ended or ctx ends. Only then shut a http.Server down: that leaves open pages and
// connections of calls alone.
func (s *Server) Drain(ctx context.Context) error {
	if s.o.Log != nil {
		s.o.Log.Info("the server drains")
	}
	s.begins.Lock()
	s.drain()
	s.begins.Unlock()
	done := make(chan struct{})
	go func() { s.streams.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (ex *exchange) hello() error {
	s := ex.s
	_, inspect := s.backend.(driver.Inspector)
	_, watch := s.backend.(driver.Watcher)
	return ex.json(httpwire.Hello{
		Version: cmp.Or(s.o.Version, "devel"), Backend: s.caps.Name, Caps: httpwire.FromCaps(s.caps, watch, inspect),
		Limits: httpwire.Limits{
			Body: httpwire.MaxBody, Name: httpwire.MaxName, Meta: httpwire.MaxMeta, Renewal: httpwire.MaxHolds, Calls: httpwire.MaxCalls, Wait: httpwire.Down(httpwire.MaxWait),
		},
	})
}

// showMetrics answers in Prometheus's text format. Classes of names are for those who may see all of them.
func (ex *exchange) showMetrics() error {
	ex.s.seen.Expire(time.Now())
	all := prometheus.Gatherers{ex.s.metrics.registry}
	if ex.who.May(See, "") {
		all = append(all, ex.s.metrics.byClass)
	}
	promhttp.HandlerFor(all, promhttp.HandlerOpts{}).ServeHTTP(ex.w, ex.r)
	return nil
}

// knowsHost reports whether the server may be called under a host name or an address. A page of a stranger has a name.
func (s *Server) knowsHost(host string) bool {
	if len(s.o.Hosts) == 0 {
		return true
	}
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.Trim(host, "[]")
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	return slices.ContainsFunc(s.o.Hosts, func(known string) bool { return strings.EqualFold(host, known) })
}

// pages are the calls of the page for people. A browser whose user is not known is sent to /login.
var pages = map[string]handler{
	"GET /{$}":         func(c *exchange) error { return c.show("locks") },
	"GET /lock":        func(c *exchange) error { return c.show("lock") },
	"GET /hot":         func(c *exchange) error { return c.show("hot") },
	"GET /losses":      func(c *exchange) error { return c.show("losses") },
	"GET /backend":     func(c *exchange) error { return c.show("backend") },
	"POST /lock/ask":   func(c *exchange) error { return c.act(Ask) },
	"POST /lock/break": func(c *exchange) error { return c.act(Break) },
}

// openPages are those for everybody.
var openPages = map[string]handler{
	"GET /login":        (*exchange).showLogin,
	"POST /login":       (*exchange).login,
	"POST /logout":      (*exchange).logout,
	"GET /page/{asset}": (*exchange).asset,
}

// openAPI is written by hand. A test compares it with the calls and the messages.
//
//go:embed openapi.json
var openAPI []byte

func serveOpenAPI(_ *Server, w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(openAPI)
}
