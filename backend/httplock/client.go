package httplock

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/bounded"
	"github.com/distlock/distlock/internal/httpwire"
	"github.com/distlock/distlock/internal/netaddr"
	"github.com/distlock/distlock/internal/unsent"
)

// maxAnswer bounds the body of an answer, in bytes.
const maxAnswer = 16 << 20

// callsPath is the path of a connection of calls.
const callsPath = "/v1/calls"

const acquirePath = "/v1/acquire"

// endpoint is one of the servers in the URL.
type endpoint struct {
	label string // for messages
	base  string // of the URLs of its calls

	// verified says that the server has the backend that was opened. A server that failed may come
	// back with another one.
	verified atomic.Bool

	joins atomic.Bool // it takes many calls over a connection

	requests, releases places // renewals need none

	unanswered atomic.Int64 // when the first call was sent since the last answer; 0: all were answered
}

// places bound how many calls are made at once. The others wait.
type places chan struct{}

// take takes a place, unless ctx ends or gone is closed first. The caller calls free.
func (p places) take(ctx context.Context, gone <-chan struct{}) (taken bool) {
	first, second := bounded.Ends(ctx)
	select {
	case p <- struct{}{}:
		return true
	case <-first:
	case <-second:
	case <-gone:
	}
	return false
}

func (p places) free() { <-p }

// silentTime is for how long a server answers nothing until callers that give up leave it, too.
const silentTime = time.Second

var epoch = time.Now()

// asked notes that a call is sent.
func (s *endpoint) asked() { s.unanswered.CompareAndSwap(0, int64(time.Since(epoch))) }

// answered notes an answer.
func (s *endpoint) answered() { s.unanswered.Store(0) }

// isSilent reports whether the server is silent, by a call whose ctx has ended: a caller that gives up proves nothing.
func (s *endpoint) isSilent(ctx context.Context) bool {
	since := s.unanswered.Load()
	return bounded.Limited(ctx) || since != 0 && time.Since(epoch)-time.Duration(since) > silentTime
}

// client sends requests to the servers.
type client struct {
	servers   []*endpoint
	current   atomic.Int32 // the one in use
	transport *http.Transport
	certs     *netaddr.Certificates
	token     *token
	works     atomic.Bool   // a call for a hold was let in
	quiet     time.Duration // a stream without a line for so long is broken

	mu   sync.Mutex
	name string // of the backend; "" until the first server has answered
	caps driver.Caps
}

// request is one call of the protocol.
type request struct {
	method, path string
	body         []byte
	status       int    // of success
	secret       string // under which the server keeps news for the client, or ""
	upgrade      string // what the connection becomes, or ""
	reads        bool   // it changes nothing, and may be sent again
	ends         bool   // a caller asks once: that it is not let in is the answer, and not repeated

	// prepare, if not nil, runs before the request is sent to a server. If it fails, the request is not sent.
	prepare func(context.Context, *endpoint) error
}

// get makes a request that changes nothing, and is answered with 200.
func get(path string) request {
	return request{method: http.MethodGet, path: path, status: http.StatusOK, reads: true, ends: true}
}

// post makes a request with a body, one of httpwire's messages, which is answered with 200.
func post(path string, body any) request {
	text, _ := json.Marshal(body) // they can all be encoded
	return request{method: http.MethodPost, path: path, body: text, status: http.StatusOK}
}

// answer is a successful answer, whose body is not read yet.
type answer struct {
	*http.Response
	from *endpoint
}

// outcome is why a server did not answer with success.
type outcome struct {
	server *endpoint
	err    error
}

// tried has the outcomes of a request. The last one counts: the servers before it did nothing.
type tried []outcome

func (t tried) Error() string {
	var parts []string
	for _, o := range t {
		parts = append(parts, fmt.Sprintf("at %s: %v", o.server.label, o.err))
	}
	return strings.Join(parts, "; ")
}

func (t tried) Unwrap() error { return t[len(t)-1].err }

// errClosing ends calls under way. It is not ErrClosed, which would say that nothing was taken.
var errClosing = errors.New("the backend was closed during the call")

// do sends a request to the current server. It goes on to the next as long as it is certain that nothing was
// done, or if the request only reads. ctx must last until the body of the answer is read.
func (c *client) do(ctx context.Context, q request) (*answer, error) {
	start := int(c.current.Load())
	var errs tried
	for k := range c.servers {
		s := c.servers[(start+k)%len(c.servers)]
		resp, err := c.try(ctx, s, q)
		if err == nil {
			return &answer{resp, s}, nil
		}
		errs = append(errs, outcome{s, err})
		if isFact(err) {
			break
		}
		c.leave(ctx, s)
		if ctx.Err() != nil || !q.reads && (!errors.Is(err, driver.ErrUnsent) || errors.Is(err, driver.ErrSpent)) {
			break // the next attempt goes on there, after ErrSpent with a fresh Owner
		}
	}
	return nil, errs
}

// inUse returns the server in use.
func (c *client) inUse() *endpoint { return c.servers[c.current.Load()] }

// isFact reports whether a server works and has decided.
func isFact(err error) bool {
	return errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrLost) || driver.Final(err)
}

// leave makes the server after s the current one, unless s is not it, or the caller only lost patience.
func (c *client) leave(ctx context.Context, s *endpoint) {
	if ctx.Err() != nil && !s.isSilent(ctx) {
		return
	}
	i := slices.Index(c.servers, s)
	c.current.CompareAndSwap(int32(i), int32((i+1)%len(c.servers)))
}

// call sends a request, and calls read for the body of the answer, if it is not nil.
func (c *client) call(ctx context.Context, q request, read func(body io.Reader) error) error {
	a, err := c.do(ctx, q)
	if err != nil {
		return err
	}
	defer a.Body.Close()
	if read == nil {
		return nil
	}
	if err := read(a.Body); err != nil {
		c.leave(ctx, a.from)
		return tried{{a.from, noAnswer(ctx, err)}}
	}
	return nil
}

// noAnswer returns the error of a request whose answer ctx may have cut short. net/http reports the cause of
// ctx then, which is the caller's: as part of the error it would pass for an answer of the server.
func noAnswer(ctx context.Context, err error) error {
	switch why := ctx.Err(); {
	case why == nil:
		return err
	case err == why:
		return fmt.Errorf("no answer: %w", why)
	default:
		return fmt.Errorf("no answer: %w (%v)", why, err)
	}
}

func decode(body io.Reader, out any) error {
	text, err := io.ReadAll(io.LimitReader(body, maxAnswer))
	if err != nil {
		return fmt.Errorf("the answer broke off: %w", err)
	}
	if err := json.Unmarshal(text, out); err != nil {
		return fmt.Errorf("the answer is malformed: %w", err)
	}
	return nil
}

// try sends a request to one server, once it is certain that it has the backend that was opened.
func (c *client) try(ctx context.Context, s *endpoint, q request) (*http.Response, error) {
	if p := s.placesFor(q.path); p != nil {
		if !p.take(ctx, nil) {
			return nil, driver.Unsent(ctx.Err())
		}
		defer p.free()
	}
	err := c.verify(ctx, s)
	if err == nil && q.prepare != nil {
		err = q.prepare(ctx, s)
	}
	if err != nil {
		return nil, driver.Unsent(err)
	}
	return c.send(ctx, s, q)
}

// placesFor returns the places of a request; nil: it needs none. A release never waits for an acquire.
func (s *endpoint) placesFor(path string) places {
	switch path {
	case "/v1/release":
		return s.releases
	case "/v1/renew", "/v1/news":
		return nil
	}
	return s.requests
}

// verify asks a server for its backend, unless it has told that before.
func (c *client) verify(ctx context.Context, s *endpoint) error {
	if s.verified.Load() {
		return nil
	}
	resp, err := c.send(ctx, s, request{method: http.MethodGet, path: "/v1", status: http.StatusOK})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var h httpwire.Hello
	if err := decode(resp.Body, &h); err != nil {
		return noAnswer(ctx, err)
	}
	if url.PathEscape(h.Backend) != resp.Header.Get(httpwire.BackendHeader) {
		return errors.New("the answer is malformed: it has two names of the backend")
	}
	caps := h.Caps.Driver(h.Backend)
	caps.Detached = true // servers have no other backends
	s.joins.Store(h.Limits.Calls >= httpwire.MaxCalls)
	return c.learn(s, caps)
}

// learn takes over the first server's backend, and wants the others to have that one too.
func (c *client) learn(s *endpoint, caps driver.Caps) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.name == "":
		c.name, c.caps = url.PathEscape(caps.Name), caps
	case url.PathEscape(caps.Name) != c.name:
		return c.foreign(caps.Name)
	case c.caps.Intersect(caps) != c.caps.Intersect(c.caps):
		return fmt.Errorf("its backend %s can no longer do all that it could when it was opened; open it again", caps.Name)
	}
	s.verified.Store(true)
	return nil
}

// foreign returns the error for a server with another backend.
func (c *client) foreign(name string) error {
	return fmt.Errorf("the server's backend is %s, and was %s when it was opened; two backends do not know each other's locks, so it is not used",
		driver.Quote(name), driver.Quote(c.caps.Name))
}

// backend returns the name of the backend as it is in headers, and "" before it is known.
func (c *client) backend() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.name
}

// send sends a request to one server, and again if it refuses the token and there is another one.
func (c *client) send(ctx context.Context, s *endpoint, q request) (*http.Response, error) {
	for first := true; ; first = false {
		resp, token, err := c.sendOnce(ctx, s, q)
		if err != nil {
			return nil, err
		}
		err = c.judge(resp, s, q.status)
		if err == nil {
			return resp, nil
		}
		resp.Body.Close()
		if first && errors.Is(err, httpwire.ErrDenied) && resp.StatusCode == http.StatusUnauthorized {
			changed, rereadErr := c.token.reread(ctx, token)
			if changed {
				continue
			}
			if rereadErr != nil {
				err = fmt.Errorf("%w; %v", err, rereadErr)
			}
		}
		if errors.Is(err, httpwire.ErrDenied) {
			err = c.denied(err, q, resp.StatusCode == http.StatusUnauthorized)
		}
		return nil, err
	}
}

// denied returns what it means that a server did not let a request in: that nothing was done. A token or a right may be
// given back, so it is final only for Open, for what is asked once, and for an attempt of a client whose rights were never seen.
func (c *client) denied(err error, q request, stranger bool) error {
	if c.backend() == "" || q.ends || q.path == acquirePath && !stranger && !c.works.Load() {
		return &notLetInError{err}
	}
	return driver.Unsent(err)
}

// notLetInError is a refusal that is final.
type notLetInError struct{ error }

func (e *notLetInError) Is(target error) bool { return target == driver.ErrInvalid }
func (e *notLetInError) Unwrap() error        { return e.error }

// sendOnce sends a request, and returns the token that was sent with it. The error matches ErrUnsent if it is certain that
// no part of the request was sent.
func (c *client) sendOnce(ctx context.Context, s *endpoint, q request) (resp *http.Response, token string, err error) {
	connected := false
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected = true }}
	r, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, trace), q.method, s.base+q.path, bytes.NewReader(q.body))
	if err != nil {
		return nil, "", driver.Unsent(err)
	}
	token = c.token.show(r.Header)
	r.Header.Set(httpwire.RequestHeader, strconv.FormatUint(rand.Uint64(), 36))
	if name := c.backend(); name != "" {
		r.Header.Set(httpwire.BackendHeader, name)
	}
	if q.secret != "" {
		r.Header.Set(httpwire.ClientHeader, q.secret)
	}
	if q.upgrade != "" {
		r.Header.Set("Connection", "Upgrade")
		r.Header.Set("Upgrade", q.upgrade)
	}
	if q.body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	s.asked()
	resp, err = c.transport.RoundTrip(r) // without a http.Client nothing is redirected
	switch {
	case err == nil:
		s.answered()
		return resp, token, nil
	case ctx.Err() != nil:
		err = noAnswer(ctx, err)
	default:
		s.verified.Store(false)
		if hint := c.certs.Hint(err); hint != "" {
			err = fmt.Errorf("%w%s", err, hint)
		}
	}
	if connected {
		return nil, token, unsent.Mark(err) // a connection that has ended before it was used is replaced
	}
	return nil, token, driver.Unsent(err)
}

// judge returns nil for an answer of the opened backend that has the status of success, or else what the answer
// says. Only an answer to this request, with the backend's name, states facts. A server that doesn't let a
// request in says so without that name.
func (c *client) judge(resp *http.Response, s *endpoint, success int) error {
	if id := resp.Header.Get(httpwire.RequestHeader); id != resp.Request.Header.Get(httpwire.RequestHeader) {
		if id != "" {
			return errMixedUp
		}
		return notOurs(resp)
	}
	name, opened := resp.Header.Get(httpwire.BackendHeader), c.backend()
	if name != "" && opened != "" && name != opened {
		s.verified.Store(false)
		if plain, err := url.PathUnescape(name); err == nil {
			name = plain
		}
		return c.foreign(name)
	}
	if resp.StatusCode == success && name != "" {
		return nil
	}
	var p httpwire.Problem
	if strings.HasPrefix(resp.Header.Get("Content-Type"), httpwire.ProblemType) {
		if err := decode(resp.Body, &p); err != nil {
			return noAnswer(resp.Request.Context(), err)
		}
	}
	notLetIn := p.Kind == httpwire.Denied || p.Kind == httpwire.Unsent
	switch {
	case p.Kind == "" || p.Kind == httpwire.OK || name == "" && !notLetIn:
		return notOurs(resp)
	case p.Detail == "":
		p.Detail = resp.Status
	}
	return p.Err()
}

var errMixedUp = errors.New("the answer is to another request; a proxy has mixed them up")

// notOurs returns the error for an answer that no distlock server gives.
func notOurs(resp *http.Response) error {
	what := fmt.Sprintf("%.50q", resp.Status)
	if to := resp.Header.Get("Location"); to != "" {
		what += fmt.Sprintf(", which leads to %.200q,", to)
	}
	return fmt.Errorf("the answer %s is not a distlock server's", what)
}

var errNoLine = errors.New("the answer has no line for the hold")

// during returns a context that ends with ctx or with life, with the cause. The caller calls end.
func during(ctx, life context.Context) (_ context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(life, func() { cancel(context.Cause(life)) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}
