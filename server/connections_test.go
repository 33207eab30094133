package server

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/internal/httpwire"
	"github.com/distlock/distlock/internal/testkit/expect"
)

// asked sends a request over a connection, and returns the status of the answer; 0: the connection has ended.
func asked(c net.Conn, call, more string) int {
	go func() { _, _ = io.WriteString(c, call+head+more) }()
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

const openCall = "GET /v1"

// Strangers get no connection that a client uses, and each other's rather than one that a client may use again.
func TestStrangersTakeNoConnections(t *testing.T) {
	t.Parallel()
	access := tokens(t, "me sha256:"+HashToken("t")+" lock *\n")
	for what, text := range map[string]string{
		"silent":      "",
		"half":        "GET /v1 HTTP/1.1\r\nHost: x\r\n",
		"healthz":     "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
		"wrong token": openCall + strings.Replace(head, "Bearer t", "Bearer u", 1) + "\r\n",
		"half a body": "POST /v1/acquire" + head + "Content-Length: 100\r\n\r\n{",
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := startWired(t, Options{Access: access, MaxConnections: 8})
				waits, renews := w.dial(), w.dial()
				body := hold("x", ownerB)
				fmt.Fprintf(waits, "POST /v1/watch%sContent-Length: %d\r\n\r\n%s", head, len(body), body)
				expect.Equal(t, asked(renews, openCall, "\r\n"), 200)
				for range 20 {
					c := w.dial()
					go func() { _, _ = io.WriteString(c, text) }()
					go func() { _, _ = io.Copy(io.Discard, c) }()
					time.Sleep(10 * time.Millisecond)
				}
				expect.Equal(t, asked(renews, openCall, "\r\n"), 200, "the connection of a client, used again")
				expect.Equal(t, asked(w.dial(), openCall, "\r\n"), 200, "a new client")
				synctest.Wait()
				expect.Equal(t, w.open.Load(), 8)
				time.Sleep(strangerTime + time.Second)
				synctest.Wait()
				expect.Equal(t, w.open.Load(), 3, "without the strangers")
				expect.Equal(t, w.s.quota.allStreams(), 1)
			})
		})
	}
}

// Among clients, the connection that has been idle for longest ends.
func TestLongestIdleConnectionEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := startWired(t, Options{MaxConnections: 4})
		all := make([]net.Conn, 6)
		for i := range all {
			all[i] = w.dial()
			expect.Equal(t, asked(all[i], openCall, "\r\n"), 200)
			time.Sleep(time.Second)
			if i >= 3 {
				expect.Equal(t, asked(all[0], openCall, "\r\n"), 200, "one in use")
			}
		}
		for i, want := range []int{200, 0, 0, 200, 200, 200} {
			expect.Equal(t, asked(all[i], openCall, "\r\n"), want, i)
		}
	})
}

// Requests that wait leave connections for those that renew. Where all are in use, a new one is refused.
func TestWaitersLeaveConnections(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := startWired(t, Options{MaxConnections: 8})
		body := hold("x", ownerB)
		var status []int
		for range 8 {
			c := w.dial()
			go fmt.Fprintf(c, "POST /v1/watch%sContent-Length: %d\r\n\r\n%s", head, len(body), body)
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			status = append(status, resp.StatusCode)
		}
		expect.Equal(t, fmt.Sprint(status), "[200 200 200 200 200 200 429 429]")
		synctest.Wait() // the connections of those that were refused are idle then
		expect.Equal(t, asked(w.dial(), openCall, "\r\n"), 200)
		synctest.Wait()
		w.s.connections.mu.Lock()
		w.s.connections.most = 6
		w.s.connections.mu.Unlock()
		expect.Equal(t, asked(w.dial(), openCall, "\r\n"), 200, "in place of an idle one")
	})
}

// A connection of calls counts until it ends, and ends when it has been silent for long.
func TestConnectionsOfCallsCount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := startWired(t, Options{MaxConnections: 2})
		count := func() int {
			w.s.connections.mu.Lock()
			defer w.s.connections.mu.Unlock()
			return len(w.s.connections.all)
		}
		s := upgraded(t, w.dial())
		for range 2 {
			expect.Equal(t, asked(w.dial(), openCall, "\r\n"), 200, "in place of an idle one")
			synctest.Wait()
		}
		expect.Equal(t, count(), 2)
		time.Sleep(quietTime - time.Second)
		s.say(1, acquireOf(hold("x", ownerA)))
		expect.Equal(t, s.hears().Outcome, httpwire.OK)
		began := time.Now()
		s.ends()
		expect.Equal(t, time.Since(began), quietTime)
		synctest.Wait()
		expect.Equal(t, count() < 2, true, "it does not count any more")
	})
}
