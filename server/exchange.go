package server

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/distlock/distlock/internal/httpwire"
)

// exchange is one request and its answer.
type exchange struct {
	s    *Server
	w    *recorder
	r    *http.Request
	ctx  context.Context // nil: the request's
	who  *Identity
	log  slog.Handler // nil: it knows neither who nor from where
	name string       // of the lock, for the log

	parts   bool // what the request has begun is measured and logged, and not the request
	waits   bool // it may stay open for as long as the client likes
	unknown bool // the outcome of the last acquire
	spent   bool // it has released its Owner
	queued  bool // an acquire was refused, and has a place in the queue
}

type handler func(*exchange) error

// context is the request's, or the call's if the request has many.
func (ex *exchange) context() context.Context {
	if ex.ctx != nil {
		return ex.ctx
	}
	return ex.r.Context()
}

// recorder remembers what was answered.
type recorder struct {
	http.ResponseWriter
	status int
}

// answerTime is how long a client may take to read an answer that is no stream.
const answerTime = 30 * time.Second

func (r *recorder) begin(status int) {
	if r.status == 0 {
		r.status = status
		_ = http.NewResponseController(r.ResponseWriter).SetWriteDeadline(time.Now().Add(answerTime)) // not supported in tests
	}
}

// WriteHeader begins the answer.
func (r *recorder) WriteHeader(status int) {
	r.begin(status)
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	r.begin(http.StatusOK)
	return r.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

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
		if !c.parts {
			c.note(pattern, c.w.status, kind, began)
		}
	})
}

// note measures and logs a call.
func (ex *exchange) note(pattern string, status int, kind httpwire.Kind, began time.Time) {
	took := time.Since(began)
	ex.s.metrics.request(pattern, kind, took)
	ex.write(pattern, ex.name, status, kind, took)
}

// write logs a call, or what has become of one hold of a call for many.
func (ex *exchange) write(pattern, name string, status int, kind httpwire.Kind, took time.Duration) {
	level, ctx := slog.LevelDebug, ex.context()
	if ex.event(kind, took) {
		level = slog.LevelWarn
	}
	if ex.s.o.Log == nil || !ex.s.o.Log.Enabled(ctx, level) {
		return
	}
	line := slog.NewRecord(time.Now(), level, "request", 0) // to find out the place in the code would take time
	log := ex.log
	if log == nil {
		log = ex.s.o.Log.Handler()
		line.AddAttrs(ex.who.logged(ex.r)...)
	}
	line.AddAttrs(slog.String("call", pattern), slog.String("lock", name), slog.Int("status", status), slog.String("outcome", string(kind)), slog.Duration("took", took))
	_ = log.Handle(ctx, line)
}

// slow is how long a call takes, that does not wait, for an operator to be told.
const slow = time.Second

// event reports whether an operator should know of a call. What a drain or the client itself has cut short is none.
func (ex *exchange) event(kind httpwire.Kind, took time.Duration) bool {
	switch kind {
	case httpwire.Lost, httpwire.Denied:
		return true
	case httpwire.Unknown, httpwire.Unsent:
		return ex.context().Err() == nil && ex.s.drained.Err() == nil
	}
	return took >= slow && !ex.waits
}

// logged returns what the log says of an identity that makes a request.
func (i *Identity) logged(r *http.Request) []slog.Attr {
	return []slog.Attr{slog.String("who", i.Name), slog.String("from", r.RemoteAddr)}
}

// reportPanic logs a panic, which net/http's own log may not show. The client gets no answer.
func (ex *exchange) reportPanic(pattern string) {
	v := recover()
	if v == nil {
		return
	}
	ex.logPanic(pattern, v)
	panic(v)
}

func (ex *exchange) logPanic(pattern string, v any) {
	if log := ex.s.o.Log; log != nil && v != http.ErrAbortHandler {
		log.Error("panic: a bug in distlock", "call", pattern, "panic", v, "stack", string(debug.Stack()))
	}
}

// enter finds out who calls, and refuses a client that means another backend.
func (ex *exchange) enter() error {
	if err := ex.identify(); err != nil {
		return err
	}
	ex.w.Header().Set(httpwire.BackendHeader, ex.s.name)
	if want := ex.r.Header.Get(httpwire.BackendHeader); want != "" && want != ex.s.name {
		return problem(http.StatusMisdirectedRequest, httpwire.Unsent, "the server's backend is %s", ex.s.caps.Name)
	}
	if ex.r.ContentLength == 0 {
		ex.s.connections.letIn(ex.r.Context())
	}
	return nil
}

// identify finds out who calls, perhaps again: rights may end while a request lasts.
func (ex *exchange) identify() error {
	who, err := ex.s.o.Access.identify(ex.r)
	if err == nil {
		ex.who = who
	}
	return err
}

// fail answers with the error, unless the answer has begun.
func (ex *exchange) fail(err error) httpwire.Kind {
	p := problemOf(err)
	if ex.w.status == 0 {
		writeProblem(ex.w, p)
	}
	return p.Kind
}

// json answers with v.
func (ex *exchange) json(v any) error {
	ex.w.Header().Set("Content-Type", "application/json")
	return json.NewEncoder(ex.w).Encode(v)
}

// may returns an error if the caller does not have a right for a lock.
func (ex *exchange) may(r Right, name string) error {
	if ex.who.May(r, name) {
		return nil
	}
	ex.s.metrics.denied(name, r)
	return problem(http.StatusForbidden, httpwire.Denied, "%s has not the right to %v this lock; rights are given for prefixes of names", ex.who, r)
}

// stream counts a request that stays open. It returns a context that ends with the request or when the server
// drains, and the function to call at the end.
func (ex *exchange) stream() (context.Context, func(), error) {
	s, who := ex.s, ex.who.Name // which may be another one at the end
	ex.waits = true
	if err := s.quota.open(who, s.o.MaxStreams); err != nil {
		return nil, nil, err
	}
	if err := s.begin(); err != nil {
		s.quota.close(who)
		return nil, nil, err
	}
	ctx, cancel := context.WithCancelCause(ex.context())
	stop := context.AfterFunc(s.drained, func() { cancel(errDraining) })
	end := func() {
		stop()
		cancel(nil)
		s.streams.Done()
		s.quota.close(who)
	}
	return ctx, end, nil
}
