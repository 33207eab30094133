package server

import (
	"bufio"
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
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
	s := must.Get(New(memlock.New(), Options{Log: slog.New(slog.NewTextHandler(log, nil))}))(t)
	defer s.drain()
	e := &events{c: &exchange{s: s, r: httptest.NewRequestWithContext(t.Context(), "GET", "/v1/events", nil)}, step: eventStep{taken: make(chan error)}}
	err := e.take(func() error { panic("boom") })
	if err == nil || !strings.Contains(log.String(), "boom") {
		t.Errorf("%v, %s", err, log)
	}
}
