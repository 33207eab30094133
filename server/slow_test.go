package server

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/internal/testkit/must"
)

// wire is a listener whose connections are in memory: a write waits until it is read.
type wire struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (w *wire) Accept() (net.Conn, error) {
	select {
	case c := <-w.conns:
		return c, nil
	case <-w.closed:
		return nil, net.ErrClosed
	}
}

func (w *wire) Close() error   { close(w.closed); return nil }
func (w *wire) Addr() net.Addr { return &net.TCPAddr{} }

// wired has a server as distlock serve runs it, in a bubble.
type wired struct {
	*testing.T
	s    *Server
	l    *wire
	open atomic.Int64 // connections
}

func startWired(t *testing.T, o Options) *wired {
	t.Helper()
	s := must.Get(New(memlock.New(), o))(t)
	w := &wired{T: t, s: s, l: &wire{make(chan net.Conn), make(chan struct{})}}
	h := s.HTTP()
	go func() { _ = h.Serve(w.l) }()
	t.Cleanup(func() { s.drain(); _ = h.Close() })
	return w
}

func (w *wired) dial() net.Conn {
	client, server := net.Pipe()
	w.Cleanup(func() { client.Close() })
	w.open.Add(1)
	w.l.conns <- &countedConn{Conn: server, closed: sync.OnceFunc(func() { w.open.Add(-1) })}
	return client
}

// countedConn notices that the server closes it.
type countedConn struct {
	net.Conn
	closed func()
}

func (c *countedConn) Close() error {
	c.closed()
	return c.Conn.Close()
}

// tokens opens a file of identities.
func tokens(t *testing.T, text string) *Access {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tokens")
	must.OK(t, os.WriteFile(path, []byte(text), 0o600))
	a := must.Get(OpenAccess(path, func(err error) { t.Error(err) }))(t)
	return a
}

const head = " HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer t\r\nContent-Type: application/x-www-form-urlencoded\r\nDistlock-Client: " + secret + "\r\n"

// A client that sends its request slowly, or does not read the answer, is cut off, and leaves nothing.
func TestSlowClients(t *testing.T) {
	t.Parallel()
	access := tokens(t, "me sha256:"+HashToken("t")+" lock,see,ask,break *\n")
	calls := []string{"GET /v1", "GET /nothing", "PATCH /v1", "GET /v1/locks/%00", "GET /v1//locks"}
	for route := range routeList() {
		calls = append(calls, strings.NewReplacer("{$}", "", "{name}", "x", "{asset}", "page.css").Replace(route))
	}
	for what, end := range map[string]string{
		"headers":       "X: ",
		"a body":        "Content-Length: 100\r\n\r\n{",
		"a chunk":       "Transfer-Encoding: chunked\r\n\r\n64\r\n{",
		"an answer":     "\r\n",
		"a file":        "Content-Type: multipart/form-data; boundary=b\r\nTransfer-Encoding: chunked\r\n\r\n3f\r\n--b\r\nContent-Disposition: form-data; name=\"f\"; filename=\"f\"\r\n\r\n",
		"many requests": "\r\nGET /v1/openapi.json" + head + "\r\n",
	} {
		for _, reads := range []bool{false, true} {
			if reads && (what == "an answer" || what == "many requests") {
				continue // streams go on
			}
			t.Run(fmt.Sprintf("%s/%v", what, reads), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := startWired(t, Options{Access: access})
					for _, call := range calls {
						for _, auth := range []string{"Bearer t", "Bearer u"} {
							c := w.dial()
							go func() { _, _ = c.Write([]byte(call + strings.Replace(head, "Bearer t", auth, 1) + end)) }()
							if reads {
								go func() { _, _ = io.Copy(io.Discard, c) }()
							}
						}
					}
					if what == "a file" {
						time.Sleep(bodyTime / 2)
					}
					time.Sleep(3 * time.Minute)
					synctest.Wait()
					if n, holds, streams := w.open.Load(), w.s.quota.allHolds(), w.s.quota.allStreams(); n != 0 || holds != 0 || streams != 0 {
						t.Errorf("%d of %d connections are open, %d holds and %d streams are counted", n, 2*len(calls), holds, streams)
					}
					info, err := w.s.inspection.Inspect(t.Context(), "x")
					if err != nil || len(info.Holders)+len(info.Waiters) > 0 {
						t.Errorf("%+v, %v", info, err)
					}
				})
			})
		}
	}
}

// The time limit of a body does not bound how long an acquire waits or a stream lasts.
func TestWaitIsLongerThanABody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := startWired(t, Options{})
		if r := bare(t.Context(), w.s, "POST", "/v1/acquire", strings.Replace(hold("x", ownerA), "30000", "3600000", 1)); r.Code != 200 {
			t.Fatal(r.Code)
		}
		body := waiting("x", ownerB, 60_000)
		c, began := w.dial(), time.Now()
		go func() { fmt.Fprintf(c, "POST /v1/acquire%sContent-Length: %d\r\n\r\n%s", head, len(body), body) }()
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || resp.StatusCode != http.StatusLocked || time.Since(began) != time.Minute {
			t.Errorf("%v, %v after %v", resp, err, time.Since(began))
		}
		c = w.dial()
		body = hold("x", ownerB)
		go func() { fmt.Fprintf(c, "POST /v1/watch%sContent-Length: %d\r\n\r\n%s", head, len(body), body) }()
		_ = c.SetReadDeadline(time.Now().Add(10*time.Minute + time.Second))
		if text, err := io.ReadAll(c); !errors.Is(err, os.ErrDeadlineExceeded) || strings.Count(string(text), ": ping") != 40 {
			t.Errorf("the stream: %v\n%s", err, text)
		}
	})
}

// The end of a client is noticed, also if it has sent a body that no handler reads, or wants no answer.
func TestClientsOfStreamsThatGo(t *testing.T) {
	t.Parallel()
	for _, more := range []string{"\r\n", "Content-Length: 1\r\n\r\n{", "Content-Length: 5\r\nExpect: 100-continue\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n1\r\n"} {
		synctest.Test(t, func(t *testing.T) {
			w := startWired(t, Options{})
			for _, call := range []string{"GET /v1/events", "HEAD /v1/events", "GET /v1/news", "HEAD /v1/news", "POST /v1/locks/x?wait=1m"} {
				c := w.dial()
				go func() { _, _ = c.Write([]byte(call + head + more)) }()
				go func() { _, _ = io.Copy(io.Discard, c) }()
				synctest.Wait()
				c.Close()
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			if n, streams := w.open.Load(), w.s.quota.allStreams(); n != 0 || streams != 0 {
				t.Errorf("%q: %d connections are open, and %d streams", more, n, streams)
			}
		})
	}
}
