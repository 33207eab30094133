package server

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// An open page gets its changes over each protocol, its connection is net/http's no longer if it is one of HTTP/1, and its end
// is noticed.
func TestViewersOfEachProtocol(t *testing.T) {
	t.Parallel()
	for proto, start := range map[string]func(*httptest.Server){
		"http": (*httptest.Server).Start,
		"tls":  (*httptest.Server).StartTLS,
		"h2":   func(h *httptest.Server) { h.EnableHTTP2 = true; h.StartTLS() },
	} {
		t.Run(proto, func(t *testing.T) {
			t.Parallel()
			s := must.Get(New(memlock.New(), Options{}))(t)
			h := httptest.NewUnstartedServer(s)
			taken := &atomic.Int32{}
			h.Config.ConnState = func(_ net.Conn, state http.ConnState) {
				if state == http.StateHijacked {
					taken.Add(1)
				}
			}
			start(h)
			t.Cleanup(func() { s.drain(); h.Close() })
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			resp := must.Get(h.Client().Do(must.Get(http.NewRequestWithContext(ctx, "GET", h.URL+"/v1/events?page=locks", nil))(t)))(t)
			defer resp.Body.Close()
			expect.Equal(t, resp.StatusCode, 200)
			expect.Equal(t, resp.Header.Get("Content-Type"), "text/event-stream")
			lines := bufio.NewScanner(resp.Body)
			for _, event := range []string{"event: hello", "event: change"} {
				for lines.Scan() && lines.Text() != event {
				}
				expect.Equal(t, lines.Text(), event)
			}
			expect.Equal(t, taken.Load() == 1, proto != "h2", "the connection was taken")
			leave()
			for s.quota.allStreams() > 0 {
				time.Sleep(time.Millisecond)
			}
		})
	}
}

// A bug in a step of a stream ends the stream, and not the server.
func TestPanicOfAStep(t *testing.T) {
	t.Parallel()
	log := &strings.Builder{}
	s := must.Get(New(memlock.New(), Options{Log: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))}))(t)
	defer s.drain()
	e := &events{c: &exchange{s: s, r: httptest.NewRequestWithContext(t.Context(), "GET", "/v1/events", nil)}, step: eventStep{taken: make(chan error)}}
	err := e.take(func() error { panic("boom") })
	if err == nil || !strings.Contains(log.String(), "boom") {
		t.Errorf("%v, %s", err, log)
	}
}

// viewed opens a page's stream of events over a connection, with a text that follows the request, and returns what it answers.
func viewed(t *testing.T, conn net.Conn, proto, more string) *bufio.Reader {
	t.Helper()
	go func() { _, _ = io.WriteString(conn, "GET /v1/events "+proto+"\r\nHost: x\r\n\r\n"+more) }()
	from := bufio.NewReader(conn)
	resp := must.Get(http.ReadResponse(from, nil))(t)
	expect.Equal(t, resp.StatusCode, 200)
	expect.Equal(t, resp.Close, true, "the end of the answer is that of the connection")
	body := bufio.NewReader(resp.Body)
	expect.Equal(t, must.Get(body.ReadString('\n'))(t), "event: hello\n")
	return body
}

// A stream of an old client is one, what came with the request does no harm, and all that holds a connection is given back: when
// the client says more, and when the server drains.
func TestEndsOfViewers(t *testing.T) {
	t.Parallel()
	for what, end := range map[string]func(w *wired, conn net.Conn){
		"more":  func(_ *wired, conn net.Conn) { _, _ = io.WriteString(conn, "GET /") },
		"gone":  func(_ *wired, conn net.Conn) { conn.Close() },
		"drain": func(w *wired, _ net.Conn) { expect.OK(w, w.s.Drain(w.Context())) },
	} {
		for _, proto := range []string{"HTTP/1.0", "HTTP/1.1"} {
			synctest.Test(t, func(t *testing.T) {
				w := startWired(t, Options{MaxConnections: 2})
				conn := w.dial()
				body := viewed(t, conn, proto, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
				go func() { _, _ = io.Copy(io.Discard, body) }()
				time.Sleep(2 * pingTime)
				expect.Equal(t, w.s.quota.allStreams(), 1, what, proto)
				end(w, conn)
				synctest.Wait()
				w.s.connections.mu.Lock()
				defer w.s.connections.mu.Unlock()
				expect.Equal(t, fmt.Sprint(w.s.quota.allStreams(), len(w.s.connections.all), w.open.Load()), "0 0 0", what, proto)
			})
		}
	}
}

// claims is a ResponseWriter of a wrapper that claims to be a Hijacker over each protocol.
type claims struct{ *httptest.ResponseRecorder }

func (claims) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, http.ErrNotSupported }

// A viewer over HTTP/2 gets its events also where a wrapper of the handler has Hijack.
func TestViewersBehindAWrapper(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := serverOf(t, Options{})
		ctx, leave := context.WithCancel(t.Context())
		r := httptest.NewRequestWithContext(ctx, "GET", "/v1/events", nil)
		r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/2.0", 2, 0
		w := httptest.NewRecorder()
		go s.ServeHTTP(claims{w}, r)
		synctest.Wait()
		leave()
		synctest.Wait()
		expect.Equal(t, fmt.Sprint(w.Code, strings.Contains(w.Body.String(), "event: hello")), "200 true", w.Body)
	})
}
