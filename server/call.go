package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
)

// call is one request.
type call struct {
	s    *Server
	w    *recorder
	r    *http.Request
	who  *Identity
	name string // of the lock, for the log
}

type handler func(*call) error

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
func (s *Server) serve(pattern string, enter, f handler, fail func(*call, error) httpwire.Kind) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		c := &call{s: s, w: &recorder{ResponseWriter: w}, r: r, who: noIdentity}
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

// enter finds out who calls, and refuses a client that means another backend.
func (c *call) enter() error {
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
func (c *call) fail(err error) httpwire.Kind {
	p := problemOf(err)
	if errors.Is(err, context.DeadlineExceeded) && p.Kind == httpwire.Unknown {
		p.Status, p.Title = http.StatusGatewayTimeout, http.StatusText(http.StatusGatewayTimeout)
	}
	if c.w.status == 0 {
		writeProblem(c.w, p)
	}
	return p.Kind
}

func problemOf(err error) httpwire.Problem {
	if own := (*problemError)(nil); errors.As(err, &own) {
		return own.Problem
	}
	return httpwire.ProblemOf(err)
}

func kindOf(err error) httpwire.Kind {
	if err == nil {
		return httpwire.OK
	}
	return problemOf(err).Kind
}

// problemError is an error that has its own status.
type problemError struct{ httpwire.Problem }

func (e *problemError) Error() string { return e.Detail }

func problem(status int, kind httpwire.Kind, format string, args ...any) *problemError {
	return &problemError{httpwire.Problem{
		Title: http.StatusText(status), Status: status, Kind: kind, Detail: fmt.Sprintf(format, args...),
	}}
}

func invalid(format string, args ...any) error {
	return problem(http.StatusBadRequest, httpwire.Invalid, format, args...)
}

func writeProblem(w http.ResponseWriter, p httpwire.Problem) {
	w.Header().Set("Content-Type", httpwire.ProblemType)
	w.Header().Set("Cache-Control", "no-store")
	if p.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="distlock"`)
	}
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p)
}

// json answers with v.
func (c *call) json(v any) error {
	c.w.Header().Set("Content-Type", "application/json")
	c.w.Header().Set("Cache-Control", "no-store")
	return json.NewEncoder(c.w).Encode(v)
}

// bodyTime is how long a client may take to send the body of its request.
const bodyTime = 10 * time.Second

// decode reads the body of the request, which has at most limit bytes.
func (c *call) decode(v any, limit int64) error {
	control := http.NewResponseController(c.w)
	_ = control.SetReadDeadline(time.Now().Add(bodyTime)) // not supported in tests
	body, err := io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, limit))
	_ = control.SetReadDeadline(time.Time{})
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return problem(http.StatusRequestEntityTooLarge, httpwire.Invalid, "the body has more than %d bytes", limit)
	case err != nil:
		return problem(http.StatusBadRequest, httpwire.Unsent, "the body did not arrive: %v", err)
	case !utf8.Valid(body):
		return invalid("the body is not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return invalid("the body is not as described in /v1/openapi.json: %s", strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := d.Token(); err != io.EOF {
		return invalid("the body has text after the JSON object")
	}
	return nil
}

// lockName checks a name, and remembers it for the log.
func (c *call) lockName(name string) error {
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
func (c *call) hold(h httpwire.Hold) (driver.Hold, error) {
	if err := c.lockName(h.Name); err != nil {
		return driver.Hold{}, err
	}
	if !isOwner(h.Owner) {
		return driver.Hold{}, invalid("the owner is not a UUID, such as 7f2f3f0e-5a0c-4f0e-9d5e-0a4b4f8b2c11: make a random one for each attempt")
	}
	return h.Driver(), nil
}

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
func (c *call) checkTTL(ttl time.Duration) error {
	caps := c.s.caps
	if ttl < max(caps.MinTTL, time.Millisecond) || ttl > caps.Longest() {
		return invalid("ttl_ms is %d: want %d to %d", httpwire.Up(ttl), max(httpwire.Up(caps.MinTTL), 1), httpwire.Down(caps.Longest()))
	}
	return nil
}

// pathName returns the name of the lock in the path.
func (c *call) pathName() (string, error) {
	name := c.r.PathValue("name")
	return name, c.lockName(name)
}

// knowsHost reports whether the server may be called under a host name.
func (s *Server) knowsHost(host string) bool {
	if len(s.o.Hosts) == 0 {
		return true
	}
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return slices.Contains(s.o.Hosts, strings.Trim(strings.ToLower(host), "[]"))
}

// query reads the parameters of the calls that have no body. Others than the known ones are an error.
func (c *call) query(known ...string) (url.Values, error) {
	values, err := url.ParseQuery(c.r.URL.RawQuery)
	if err != nil {
		return nil, invalid("the query is malformed")
	}
	for key, v := range values {
		if !slices.Contains(known, key) || len(v) > 1 {
			return nil, invalid("parameter %.50q: want each at most once of: %s", key, strings.Join(known, ", "))
		}
	}
	return values, nil
}
