package server

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
	"github.com/distlock/distlock/internal/wait"
)

// Options configure a Server. The zero value allows everything to every client: it is for a listener that only
// its own user can reach.
type Options struct {
	// Access decides who may do what; nil: every client may do everything.
	Access *Access

	// Hosts are the host names under which the server may be called, without ports; empty: any. A server
	// on a loopback address needs them, or a page in the user's browser could reach it by a host name of
	// its own that it lets point there.
	Hosts []string

	// Log gets a line for each request, without owners and tokens; nil: none.
	Log *slog.Logger

	// Version is the program's, for GET /v1.
	Version string

	// MaxHolds and MaxStreams limit how many holds an identity may have that were granted here, and how
	// many requests it may have open that wait; 0 means 10000 and 1000.
	MaxHolds, MaxStreams int
}

// SocketHost is the host name that a client gives which calls a server on a Unix socket.
const SocketHost = "distlock"

// callTimeout is how long one call of the backend may take. The outcome is unknown after that.
const callTimeout = 10 * time.Second

// Server is the http.Handler of a backend. It is safe for concurrent use.
type Server struct {
	backend driver.Backend
	caps    driver.Caps
	o       Options
	mux     *http.ServeMux
	name    string // of the backend, as in the header
	origin  *http.CrossOriginProtection

	drained context.Context // ends when the server drains
	drain   context.CancelFunc
	begins  sync.Mutex // of a stream, or of Drain, which then waits for all streams
	streams wait.Group

	ownerCalls  ownerCalls
	subscribers subscribers
	quota       quota
	metrics     *metrics
	seen        *seen
	poller      poller
	page        *page
}

// New returns a server for a backend, which the caller closes after the server. It returns ErrUnsupported if the
// backend's Caps are not Detached.
func New(b driver.Backend, o Options) (*Server, error) {
	caps := b.Caps()
	if !caps.Detached {
		return nil, fmt.Errorf("%w: %s can't be served: its locks belong to the connection that took them, so another server could not renew them", driver.ErrUnsupported, caps.Name)
	}
	o.MaxHolds, o.MaxStreams = cmp.Or(o.MaxHolds, 10_000), cmp.Or(o.MaxStreams, 1000)
	s := &Server{backend: b, caps: caps, o: o, mux: http.NewServeMux(), name: url.PathEscape(caps.Name), origin: http.NewCrossOriginProtection()}
	s.drained, s.drain = context.WithCancel(context.Background())
	s.seen = newSeen()
	s.metrics = newMetrics(&s.quota, s.seen)
	s.poller.s, s.page = s, newPage()
	s.routes()
	return s, nil
}

// calls are those that are let in, logged and measured.
var calls = map[string]handler{
	"GET /v1":                     (*call).hello,
	"POST /v1/acquire":            (*call).acquire,
	"POST /v1/renew":              (*call).renew,
	"POST /v1/release":            (*call).release,
	"POST /v1/watch":              (*call).watch,
	"GET /v1/news":                (*call).news,
	"GET /v1/locks":               (*call).list,
	"GET /v1/locks/{name}":        (*call).inspect,
	"POST /v1/locks/{name}":       (*call).simpleAcquire,
	"PUT /v1/locks/{name}":        (*call).simpleRenew,
	"DELETE /v1/locks/{name}":     (*call).simpleRelease,
	"POST /v1/locks/{name}/ask":   (*call).ask,
	"POST /v1/locks/{name}/break": (*call).breakLock,
	"GET /v1/events":              (*call).changes,
	"GET /metrics":                (*call).showMetrics,
}

// open are the calls that every client may make.
var open = map[string]func(*Server, http.ResponseWriter, *http.Request){
	"GET /healthz":         func(_ *Server, w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") },
	"GET /readyz":          (*Server).ready,
	"GET /v1/openapi.json": serveOpenAPI,
}

func (s *Server) routes() {
	for pattern, f := range calls {
		s.mux.Handle(pattern, s.serve(pattern, (*call).enter, f, (*call).fail))
	}
	for pattern, f := range pages {
		s.mux.Handle(pattern, s.serve(pattern, (*call).enter, f, (*call).failPage))
	}
	for pattern, f := range openPages {
		s.mux.Handle(pattern, s.serve(pattern, nil, f, (*call).failPage))
	}
	for pattern, f := range open {
		s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { f(s, w, r) })
	}
}

// ServeHTTP answers a request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !s.knowsHost(r.Host) {
		writeProblem(w, problem(http.StatusMisdirectedRequest, httpwire.Unsent, "the server is not known as %.100q", r.Host).Problem)
		return
	}
	if err := s.origin.Check(r); err != nil {
		writeProblem(w, problem(http.StatusForbidden, httpwire.Denied, "a page of another site made this request").Problem)
		return
	}
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Referrer-Policy", "same-origin")
	s.mux.ServeHTTP(w, r)
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
// released. It returns when all streams have ended or ctx ends.
func (s *Server) Drain(ctx context.Context) error {
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

// errDraining sends the client to the next server.
var errDraining = fmt.Errorf("%w: the server shuts down", driver.ErrUnsent)

// stream counts a request that stays open. It returns a context that ends with the request or when the server
// drains, and the function to call at the end.
func (c *call) stream() (context.Context, func(), error) {
	s := c.s
	if !s.quota.open(c.who.Name, s.o.MaxStreams) {
		return nil, nil, problem(http.StatusTooManyRequests, httpwire.Unsent, "%s has %d open requests that wait: that is the limit", c.who, s.o.MaxStreams)
	}
	if err := s.begin(); err != nil {
		s.quota.close(c.who.Name)
		return nil, nil, err
	}
	ctx, cancel := context.WithCancelCause(c.r.Context())
	stop := context.AfterFunc(s.drained, func() { cancel(errDraining) })
	end := func() {
		stop()
		cancel(nil)
		s.streams.Done()
		s.quota.close(c.who.Name)
	}
	return ctx, end, nil
}

// begin counts a stream, unless the server drains.
func (s *Server) begin() error {
	s.begins.Lock()
	defer s.begins.Unlock()
	if s.drained.Err() != nil {
		return errDraining
	}
	s.streams.Add(1)
	return nil
}

func (c *call) hello() error {
	s := c.s
	_, inspect := s.backend.(driver.Inspector)
	_, watch := s.backend.(driver.Watcher)
	return c.json(httpwire.Hello{
		Version: cmp.Or(s.o.Version, "devel"), Backend: s.caps.Name, Caps: httpwire.FromCaps(s.caps, watch, inspect),
		Limits: httpwire.Limits{
			Body: httpwire.MaxBody, Name: httpwire.MaxName, Meta: httpwire.MaxMeta, Renewal: httpwire.MaxHolds, Wait: httpwire.Down(httpwire.MaxWait),
		},
	})
}
