package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
)

// exchange is one request and its answer.
type exchange struct {
	s    *Server
	w    *recorder
	r    *http.Request
	who  *Identity
	name string // of the lock, for the log

	unknown bool // the outcome of the last acquire
	queued  bool // an acquire was refused, and has a place in the queue
}

type handler func(*exchange) error

// recorder remembers what was answered.
type recorder struct {
	http.ResponseWriter
	status int
}

// answerTime is how long a client may take to read an answer that is no stream.
const answerTime = 30 * time.Second

func (w *recorder) begin(status int) {
	if w.status == 0 {
		w.status = status
		_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now().Add(answerTime)) // not supported in tests
	}
}

// WriteHeader begins the answer.
func (w *recorder) WriteHeader(status int) {
	w.begin(status)
	w.ResponseWriter.WriteHeader(status)
}

func (w *recorder) Write(b []byte) (int, error) {
	w.begin(http.StatusOK)
	return w.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// serve makes a handler of f: enter, if any, lets the caller in or not, and fail answers with an error. It logs
// and measures the request.
func (s *Server) serve(pattern string, enter, f handler, fail func(*exchange, error) httpwire.Kind) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		c := &exchange{s: s, w: w.(*recorder), r: r, who: noIdentity}
		defer c.reportPanic(pattern)
		var err error
		if enter != nil {
			err = enter(c)
		}
		if err == nil {
			err = f(c)
		}
		kind := httpwire.OK
		if err != nil {
			kind = fail(c, err)
		}
		s.metrics.request(pattern, kind, time.Since(began))
		if s.o.Log != nil {
			s.o.Log.LogAttrs(r.Context(), slog.LevelInfo, "request", slog.String("call", pattern), slog.String("lock", c.name),
				slog.String("who", c.who.Name), slog.String("from", r.RemoteAddr), slog.Int("status", c.w.status),
				slog.String("outcome", string(kind)), slog.Duration("took", time.Since(began)))
		}
	})
}

// reportPanic logs a panic, which net/http's own log may not show. The client gets no answer.
func (c *exchange) reportPanic(pattern string) {
	v := recover()
	if v == nil {
		return
	}
	if log := c.s.o.Log; log != nil && v != http.ErrAbortHandler {
		log.Error("panic: a bug in distlock", "call", pattern, "panic", v, "stack", string(debug.Stack()))
	}
	panic(v)
}

// enter finds out who calls, and refuses a client that means another backend.
func (c *exchange) enter() error {
	who, err := c.s.o.Access.identify(c.r)
	if err != nil {
		return err
	}
	c.who = who
	c.w.Header().Set(httpwire.BackendHeader, c.s.name)
	if want := c.r.Header.Get(httpwire.BackendHeader); want != "" && want != c.s.name {
		return problem(http.StatusMisdirectedRequest, httpwire.Unsent, "the server's backend is %s", c.s.caps.Name)
	}
	return nil
}

// fail answers with the error, unless the answer has begun.
func (c *exchange) fail(err error) httpwire.Kind {
	p := problemOf(err)
	if errors.Is(err, context.DeadlineExceeded) && p.Kind == httpwire.Unknown {
		p.Status, p.Title = http.StatusGatewayTimeout, http.StatusText(http.StatusGatewayTimeout)
	}
	if c.w.status == 0 {
		writeProblem(c.w, p)
	}
	return p.Kind
}

// json answers with v.
func (c *exchange) json(v any) error {
	c.w.Header().Set("Content-Type", "application/json")
	return json.NewEncoder(c.w).Encode(v)
}

// readBefore bounds until when the server waits for data of the client; zero: it does not.
func readBefore(w http.ResponseWriter, t time.Time) {
	_ = http.NewResponseController(w).SetReadDeadline(t) // not supported in tests
}

// body reads the body of the request, which has at most limit bytes.
func (c *exchange) body(limit int64) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, limit))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, problem(http.StatusRequestEntityTooLarge, httpwire.Invalid, "the body has more than %d bytes", limit)
	case err != nil:
		return nil, problem(http.StatusBadRequest, httpwire.Unsent, "the body did not arrive: %v", err)
	case !utf8.Valid(body):
		return nil, invalid("the body is not UTF-8")
	}
	readBefore(c.w, time.Time{}) // the deadline stays if the body did not arrive
	return body, nil
}

// decode reads the body of the request, a JSON object of at most limit bytes.
func (c *exchange) decode(v any, limit int64) error {
	body, err := c.body(limit)
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err = d.Decode(v); err != nil {
		return invalid("the body is not as described in /v1/openapi.json: %s", short(jsonError(err)))
	}
	if _, err := d.Token(); err != io.EOF {
		return invalid("the body has text after the JSON object")
	}
	return checkKeys(body)
}

// noBody refuses a request with a body. A call that waits must not leave a body unread, since the end of the
// client would not be noticed.
func (c *exchange) noBody() error {
	if c.r.ContentLength != 0 {
		return invalid("there is a body: want all in the path and the query; POST /v1/acquire has one")
	}
	return nil
}

// jsonError returns what is wrong with a body, without the names of Go's types.
func jsonError(err error) string {
	if err == io.EOF {
		return "it is empty"
	}
	if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) && wrong.Field != "" {
		return fmt.Sprintf("%s can't be a %s", wrong.Field[strings.LastIndexByte(wrong.Field, '.')+1:], wrong.Value)
	}
	return strings.TrimPrefix(err.Error(), "json: ")
}

// lockName checks a name, and remembers it for the log.
func (c *exchange) lockName(name string) error {
	switch {
	case name == "":
		return invalid("a lock needs a name")
	case len(name) > httpwire.MaxName:
		return invalid("the name has %d bytes: at most %d", len(name), httpwire.MaxName)
	case !utf8.ValidString(name) || strings.ContainsRune(name, 0):
		return invalid("the name is not UTF-8 or contains NUL")
	}
	c.name = name
	return nil
}

// hold checks a hold that a client names.
func (c *exchange) hold(h httpwire.Hold) (driver.Hold, error) {
	if err := c.lockName(h.Name); err != nil {
		return driver.Hold{}, err
	}
	if !isOwner(h.Owner) {
		return driver.Hold{}, errOwner
	}
	// It moves with the clock, as fences do: a combinator can follow the counter of one of its members.
	if most := uint64(time.Now().AddDate(10, 0, 0).UnixMicro()) << 10; h.Floor > most {
		return driver.Hold{}, invalid("floor is %d: want at most %d, which fences reach in ten years", h.Floor, most)
	}
	return h.Driver(), nil
}

var errOwner = invalid("the owner is not a UUID in lower case, such as 7f2f3f0e-5a0c-4f0e-9d5e-0a4b4f8b2c11: make a random one for each attempt")

// isOwner reports whether s is a UUID in its 36 character form, in lower case.
func isOwner(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i, c := range []byte(s) {
		switch dash := i == 8 || i == 13 || i == 18 || i == 23; {
		case dash && c != '-', !dash && !strings.ContainsRune("0123456789abcdef", rune(c)):
			return false
		}
	}
	return true
}

// checkTTL refuses a TTL that the backend doesn't take.
func (c *exchange) checkTTL(ttl time.Duration) error {
	caps := c.s.caps
	if ttl < max(caps.MinTTL, time.Millisecond) || ttl > caps.Longest() {
		return invalid("ttl_ms is %d: want %d to %d", httpwire.Up(ttl), max(httpwire.Up(caps.MinTTL), 1), httpwire.Down(caps.Longest()))
	}
	return nil
}

// pathName returns the name of the lock in the path.
func (c *exchange) pathName() (string, error) {
	name := c.r.PathValue("name")
	if name == slashName {
		name = "/"
	}
	return name, c.lockName(name)
}

// query reads the parameters of the calls that have no body. Others than the known ones are an error.
func (c *exchange) query(known ...string) (url.Values, error) {
	values, err := url.ParseQuery(c.r.URL.RawQuery)
	if err != nil {
		return nil, invalid("the query is malformed")
	}
	for key, v := range values {
		if !slices.Contains(known, key) || len(v) > 1 {
			return nil, invalid("parameter %.50q: want each at most once of: %s", key, strings.Join(known, ", "))
		}
		if !utf8.ValidString(v[0]) || strings.ContainsRune(v[0], 0) || len(v[0]) > httpwire.MaxName {
			return nil, invalid("parameter %s is not UTF-8, contains NUL, or has more than %d bytes", key, httpwire.MaxName)
		}
	}
	return values, nil
}

// may returns an error if the caller does not have a right for a lock.
func (c *exchange) may(r Right, name string) error {
	if c.who.May(r, name) {
		return nil
	}
	return problem(http.StatusForbidden, httpwire.Denied, "%s has not the right to %v this lock; rights are given for prefixes of names", c.who, r)
}

// stream counts a request that stays open. It returns a context that ends with the request or when the server
// drains, and the function to call at the end.
func (c *exchange) stream() (context.Context, func(), error) {
	s, who := c.s, c.who.Name // which may be another one at the end
	if !s.quota.open(who, s.o.MaxStreams) {
		return nil, nil, problem(http.StatusTooManyRequests, httpwire.Unsent, "%s has %d open requests that wait: that is the limit", c.who, s.o.MaxStreams)
	}
	if err := s.begin(); err != nil {
		s.quota.close(who)
		return nil, nil, err
	}
	ctx, cancel := context.WithCancelCause(c.r.Context())
	stop := context.AfterFunc(s.drained, func() { cancel(errDraining) })
	end := func() {
		stop()
		cancel(nil)
		s.streams.Done()
		s.quota.close(who)
	}
	return ctx, end, nil
}
