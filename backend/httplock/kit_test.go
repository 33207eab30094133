package httplock

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

var (
	eventually = locktest.Eventually
	soon       = locktest.Soon
)

// fake is a server whose answers a test writes.
type fake struct {
	*httptest.Server
	t testing.TB

	mu    sync.Mutex
	name  string // of the backend
	mixed bool   // it answers as if to other requests
	joins int    // calls at once over a connection; 0: it has none
	caps  driver.Caps
	calls []string                    // so far
	open  int                         // connections of calls
	do    map[string]http.HandlerFunc // by path, instead of success
}

var fullCaps = driver.Caps{Modes: driver.AllModes, Fence: true, Revocable: driver.AllModes, Downgrade: true}

func newFake(t testing.TB) *fake {
	t.Helper()
	f := &fake{t: t, name: "store:1/a b", caps: fullCaps, do: map[string]http.HandlerFunc{}}
	l := must.Get(net.Listen("tcp", testserver.FreeAddr(t)))(t)
	f.Server = httptest.NewUnstartedServer(f)
	f.Server.Listener.Close()
	f.Server.Listener = l
	f.Server.Start()
	t.Cleanup(func() { f.CloseClientConnections(); f.Close() })
	return f
}

// set changes the fake.
func (f *fake) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// answer makes the calls of a path be answered by h; nil: with success again.
func (f *fake) answer(path string, h http.HandlerFunc) {
	f.set(func() {
		if f.do[path] = h; h == nil {
			delete(f.do, path)
		}
	})
}

// called returns how often a path was called.
func (f *fake) called(path string) (n int) {
	f.set(func() {
		for _, c := range f.calls {
			if c == path {
				n++
			}
		}
	})
	return n
}

// mark adds what makes an answer a server's.
func (f *fake) mark(w http.ResponseWriter) {
	f.set(func() { w.Header().Set(httpwire.BackendHeader, url.PathEscape(f.name)) })
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body) // only then does the server notice that a client has gone
	r.Body = io.NopCloser(bytes.NewReader(body))
	var own http.HandlerFunc
	var name string
	var caps driver.Caps
	var joins int
	f.set(func() {
		w.Header().Set(httpwire.RequestHeader, r.Header.Get(httpwire.RequestHeader))
		if f.mixed {
			w.Header().Set(httpwire.RequestHeader, "of another")
		}
		f.calls = append(f.calls, r.URL.Path)
		own, name, caps, joins = f.do[r.URL.Path], f.name, f.caps, f.joins
	})
	if own != nil {
		own(w, r)
		return
	}
	f.mark(w)
	if want := r.Header.Get(httpwire.BackendHeader); want != "" && want != url.PathEscape(name) {
		f.problem(httpwire.Unsent)(w, r)
		return
	}
	switch r.URL.Path {
	case "/v1":
		json.NewEncoder(w).Encode(httpwire.Hello{Backend: name, Caps: httpwire.FromCaps(caps, true, true), Limits: httpwire.Limits{Calls: joins}})
	case "/v1/acquire":
		json.NewEncoder(w).Encode(httpwire.Grant{Fence: 7, Fences: 1, TTL: 60_000})
	case "/v1/calls":
		f.upgrade(w, func(c httpwire.Call, say func(string)) { say(success(c)) })
	case "/v1/renew":
		var m httpwire.Renewal
		expect.OK(f.t, json.NewDecoder(r.Body).Decode(&m))
		for i := range m.Holds {
			json.NewEncoder(w).Encode(httpwire.Renewed{Index: i, Outcome: httpwire.OK})
		}
	case "/v1/news":
		f.events(w, r, httpwire.EventHello, nil)
	case "/v1/watch":
		f.events(w, r, httpwire.EventArmed, nil)
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}

// events answers with a stream that begins with an event. It goes on with those of more, and ends when more is
// closed or the request ends.
func (f *fake) events(w http.ResponseWriter, r *http.Request, first string, more <-chan string) {
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprintf(w, ": comment\nevent: %s\ndata: {}\n\n", first)
	w.(http.Flusher).Flush()
	for {
		select {
		case e, open := <-more:
			if !open {
				return
			}
			fmt.Fprint(w, e+"\n\n")
			w.(http.Flusher).Flush()
		case <-r.Context().Done():
			return
		}
	}
}

// upgrade makes a connection of calls of one of a request. answer gets each call, and may say lines at any time.
func (f *fake) upgrade(w http.ResponseWriter, answer func(c httpwire.Call, say func(string))) {
	f.mark(w)
	w.Header().Set("Connection", "Upgrade")
	w.Header().Set("Upgrade", httpwire.CallsProtocol)
	w.WriteHeader(http.StatusSwitchingProtocols)
	conn, rest, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return // the client has gone
	}
	defer conn.Close()
	f.set(func() { f.open++ })
	defer f.set(func() { f.open-- })
	f.t.Cleanup(func() { conn.Close() })
	lines := bufio.NewScanner(rest)
	for lines.Scan() {
		var c httpwire.Call
		if json.Unmarshal(lines.Bytes(), &c) != nil {
			return // the client has gone in the middle of it
		}
		answer(c, func(line string) { io.WriteString(conn, line+"\n") })
	}
}

// streams answers the calls of connections.
func (f *fake) streams(answer func(c httpwire.Call, say func(string))) {
	f.answer("/v1/calls", func(w http.ResponseWriter, _ *http.Request) { f.upgrade(w, answer) })
}

// success is the line for a call that is ok.
func success(c httpwire.Call) string {
	line := httpwire.Called{Index: c.Index, Outcome: httpwire.OK}
	if c.Acquire != nil {
		line.Grant = &httpwire.Grant{Fence: 7, Fences: 1, TTL: 60_000}
	}
	return string(httpwire.AppendCalled(nil, &line))
}

// problem answers with a problem of a kind.
func (f *fake) problem(kind httpwire.Kind) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		f.mark(w)
		w.Header().Set("Content-Type", httpwire.ProblemType)
		w.WriteHeader(http.StatusTeapot) // only the kind counts
		json.NewEncoder(w).Encode(httpwire.Problem{Kind: kind, Detail: "the fake says " + string(kind)})
	}
}

// silent answers nothing.
func silent(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// hangUp ends the connection.
func hangUp(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// openAll opens a backend of all these servers.
func openAll(t testing.TB, servers ...*fake) *Backend {
	t.Helper()
	var hosts []string
	for _, f := range servers {
		hosts = append(hosts, strings.TrimPrefix(f.URL, "http://"))
	}
	b := must.Get(Open(t.Context(), "http://"+strings.Join(hosts, ",")+"/?timeout=1m"))(t) // a busy machine needs it
	t.Cleanup(func() { b.Close() })
	return b
}

func requestFor(name string) driver.Request {
	return driver.Request{
		Hold:   driver.Hold{Name: name, Owner: driver.NewOwner(), Mode: driver.Exclusive, TTL: time.Minute},
		Fences: 1,
	}
}

// noFact fails the test if an error states a fact about a lock.
func noFact(t testing.TB, what string, err error) {
	t.Helper()
	facts := []error{nil, driver.ErrHeld, driver.ErrLost, driver.ErrInvalid, driver.ErrUnsupported, driver.ErrClosed, driver.ErrUnsent}
	if slices.ContainsFunc(facts, func(fact error) bool { return err == fact || fact != nil && errors.Is(err, fact) }) {
		t.Errorf("%s is taken for a fact: %v", what, err)
	}
}

// untilCalled returns a context that ends once a server has been called so many times. A deadline could pass before the
// request is sent.
func untilCalled(t testing.TB, f *fake, path string, times int) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		eventually(t, "a call", func() bool { return f.called(path) == times })
		cancel()
	}()
	return ctx
}
