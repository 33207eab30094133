package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
)

// upgradeCall asks for a connection of calls, with more headers.
const upgradeCall = "GET /v1/calls HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: " + httpwire.CallsProtocol + "\r\n"

// callLines is a connection of calls.
type callLines struct {
	testing.TB
	net.Conn
	lines *bufio.Scanner
}

// upgrade opens a connection of calls.
func (r *rig) upgrade(headers ...string) *callLines {
	r.Helper()
	conn := must.Get(net.Dial("tcp", r.http.Listener.Addr().String()))(r)
	return upgraded(r, conn, headers...)
}

func upgraded(tb testing.TB, conn net.Conn, headers ...string) *callLines {
	tb.Helper()
	tb.Cleanup(func() { conn.Close() })
	text := upgradeCall
	for _, h := range headers {
		text += h + "\r\n"
	}
	must.Get(io.WriteString(conn, text+"\r\n"))(tb)
	buffer := bufio.NewReader(conn)
	resp := must.Get(http.ReadResponse(buffer, nil))(tb)
	expect.Equal(tb, resp.StatusCode, http.StatusSwitchingProtocols)
	expect.Equal(tb, resp.Header.Get(httpwire.BackendHeader) != "", true, "the name of the backend")
	return &callLines{tb, conn, bufio.NewScanner(buffer)}
}

// say sends a line. An operand is what a call does, as JSON.
func (s *callLines) say(index int, what string) {
	s.Helper()
	must.Get(fmt.Fprintf(s, "{\"index\":%d,%s}\n", index, what))(s)
}

// hears reads the next answer.
func (s *callLines) hears() (c httpwire.Called) {
	s.Helper()
	if !s.lines.Scan() {
		s.Fatal("the connection has ended: ", s.lines.Err())
	}
	must.OK(s, json.Unmarshal(s.lines.Bytes(), &c))
	return c
}

// ends checks that the connection ends.
func (s *callLines) ends() {
	s.Helper()
	expect.Equal(s, s.lines.Scan(), false, "more lines", s.lines.Text())
}

func acquireOf(hold string) string { return `"acquire":` + hold }
func releaseOf(hold string) string { return `"release":` + hold }

// Each call over a connection gets what it would get as a request.
func TestStreamedCalls(t *testing.T) {
	t.Parallel()
	access := tokens(t, "me sha256:"+HashToken("t")+" lock a/\n")
	r := start(t, memlock.New(), Options{Access: access, MaxHolds: 3})
	as := []string{"Authorization", "Bearer t"}
	r.wants(200, "", "POST", "/v1/acquire", hold("a/held", ownerA), as...)
	r.wants(200, "", "POST", "/v1/acquire", hold("a/mine", ownerB), as...)
	s := r.upgrade("Authorization: Bearer t")
	for what, want := range map[string]string{
		acquireOf(hold("a/held", driver.NewOwner())): "held", releaseOf(hold("a/mine", ownerB)): "ok", releaseOf(hold("a/other", ownerB)): "lost",
		acquireOf(hold("b/x", ownerB)): "denied", acquireOf(hold("a/x", "me")): "invalid", acquireOf(hold("", ownerB)): "invalid",
		acquireOf(hold(strings.Repeat("n", httpwire.MaxName+1), ownerB)):      "invalid",
		acquireOf(hold("a/x", ownerB)) + "," + releaseOf(hold("a/x", ownerB)): "invalid", `"leave":false`: "invalid",
	} {
		s.say(7, what)
		c := s.hears()
		expect.Equal(t, fmt.Sprint(c.Index, c.Outcome), "7"+want, what)
		if (c.Problem == nil) != (c.Outcome == httpwire.OK) || c.Problem != nil && c.Problem.Kind != c.Outcome || c.Grant != nil {
			t.Errorf("%+v", c)
		}
	}
	granted, unsent := 0, 0
	for i := range 4 {
		s.say(i+1, acquireOf(hold(fmt.Sprint("a/new", i), driver.NewOwner())))
	}
	for range 4 {
		switch c := s.hears(); {
		case c.Outcome == httpwire.OK && c.Grant != nil && c.Grant.Fence > 0 && c.Grant.TTL == 30_000:
			granted++
		case c.Outcome == httpwire.Unsent && c.Problem.Status == http.StatusTooManyRequests:
			unsent++
		}
	}
	expect.Equal(t, fmt.Sprint(granted, unsent), "2 2", "of three holds, with one that is held")
	r.wants(426, "Upgrade: "+httpwire.CallsProtocol, "GET", "/v1/calls", "", as...)
	r.wants(401, "", "GET", "/v1/calls", "")
	s.Close()
	must.OK(t, r.s.Drain(t.Context()))
	r.http.Close()
	log := r.log.String()
	for what, want := range map[string]int{
		`call="POST /v1/acquire"`: 2 + 6 + 4, `call="POST /v1/release"`: 3, `call="GET /v1/calls"`: 2, "lock=a/mine": 2, "status=423 outcome=held": 1, "status=204": 1,
	} {
		expect.Equal(t, strings.Count(log, what), want, what)
	}
}

// A call that waits does not hold up the answers to others, and ends if nobody waits for it any more.
func TestStreamedCallsAreAnsweredApart(t *testing.T) {
	t.Parallel()
	r := start(t, memlock.New(), Options{})
	r.wants(200, "", "POST", "/v1/acquire", hold("x", ownerA))
	s := r.upgrade()
	s.say(1, acquireOf(waiting("x", ownerB, 60_000)))
	s.say(2, acquireOf(hold("y", driver.NewOwner())))
	c := s.hears()
	expect.Equal(t, fmt.Sprint(c.Index, c.Outcome), "2ok")
	r.await("x", 1)
	locktest.Eventually(t, "the connection, and the call that waits", func() bool { return r.s.quota.allStreams() == 2 })
	r.wants(204, "", "POST", "/v1/release", hold("x", ownerA))
	c = s.hears()
	expect.Equal(t, fmt.Sprint(c.Index, c.Outcome), "1ok")
	s.say(3, acquireOf(waiting("x", driver.NewOwner(), 60_000)))
	r.await("x", 1)
	s.say(3, `"leave":true`)
	c = s.hears()
	expect.Equal(t, fmt.Sprint(c.Index, c.Outcome), "3unknown")
	s.say(3, `"leave":true`) // it is over
	s.say(4, releaseOf(hold("x", ownerB)))
	expect.Equal(t, s.hears().Index, 4)
}

// A client that goes ends its calls that wait.
func TestStreamedCallsOfOneThatGoes(t *testing.T) {
	t.Parallel()
	r := start(t, memlock.New(), Options{})
	r.wants(200, "", "POST", "/v1/acquire", hold("x", ownerA))
	s := r.upgrade()
	s.say(1, acquireOf(waiting("x", ownerB, 60_000)))
	r.await("x", 1)
	s.Close()
	r.s.streams.Wait()
	expect.Equal(t, r.s.quota.allStreams(), 0)
}

// broken panics for one name.
type broken struct{ *memlock.Backend }

func (b broken) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if r.Name == "bug" {
		panic("a bug")
	}
	return b.Backend.Acquire(ctx, r)
}

// A panic in a call is logged, and harms no other call.
func TestStreamedCallsWithAPanic(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	r := start(t, broken{memlock.New()}, Options{Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	s := r.upgrade()
	for name, want := range map[string]httpwire.Kind{"bug": httpwire.Unknown, "x": httpwire.OK} {
		s.say(1, acquireOf(hold(name, driver.NewOwner())))
		expect.Equal(t, s.hears().Outcome, want, name)
	}
	s.Close()
	r.s.streams.Wait()
	expect.Equal(t, strings.Contains(log.String(), "a bug in distlock"), true, "logged")
}

// A server that drains says so, ends the calls that wait, and answers those that come meanwhile, but not for long.
func TestStreamedCallsWhileTheServerDrains(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := startWired(t, Options{})
		s := upgraded(t, w.dial())
		s.say(1, acquireOf(hold("x", ownerA)))
		expect.Equal(t, s.hears().Outcome, httpwire.OK)
		s.say(2, acquireOf(waiting("x", ownerB, 60_000)))
		synctest.Wait()
		drained := make(chan error, 1)
		go func() { drained <- w.s.Drain(t.Context()) }()
		for range 2 {
			c := s.hears()
			expect.Equal(t, c.Index == 0 || c.Index == 2, true, c.Index)
			expect.Equal(t, fmt.Sprint(c.Outcome, c.Problem.Status), "unsent503")
		}
		s.say(3, acquireOf(hold("z", ownerB)))
		expect.Equal(t, s.hears().Outcome, httpwire.Unsent)
		s.say(4, releaseOf(hold("x", ownerA)))
		expect.Equal(t, s.hears().Outcome, httpwire.OK, "holds are released still")
		more := 0
		for ; more < 10; more++ {
			time.Sleep(farewellTime / 2)
			if _, err := fmt.Fprintf(s, `{"index":5,%s}`+"\n", releaseOf(hold("x", ownerA))); err != nil || !s.lines.Scan() {
				break
			}
		}
		expect.Equal(t, more <= 2, true, more)
		expect.OK(t, <-drained)
	})
}

// A client that does not read its answers is not served any more, and loses its connection.
func TestStreamedCallsOfOneThatDoesNotRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := startWired(t, Options{})
		s := upgraded(t, w.dial())
		var err error
		sent := 0
		for ; err == nil && sent < 20_000; sent++ {
			_, err = fmt.Fprintf(s, `{"index":%d}`+"\n", sent+1)
		}
		expect.Equal(t, err != nil, true, "the server has taken calls: ", sent)
		w.s.streams.Wait()
	})
}

// A connection becomes one of calls only if its client has asked for that, and sends nothing else.
func TestUpgradesThatAreRefused(t *testing.T) {
	t.Parallel()
	const protocol = "Upgrade: " + httpwire.CallsProtocol + "\r\n"
	synctest.Test(t, func(t *testing.T) {
		w := startWired(t, Options{})
		for more, want := range map[string]int{
			protocol + "\r\n": 426,
			"Connection: keep-alive\r\n" + protocol + "\r\n":                                                                     426,
			"Connection: keep-alive, Upgrade\r\n\r\n":                                                                            426,
			"Connection: x\r\nConnection: y, upgrade\r\n" + protocol + "\r\n":                                                    101,
			"Connection: Upgrade\r\nUpgrade: websocket\r\nOrigin: https://another.example\r\nSec-Fetch-Site: cross-site\r\n\r\n": 426,
			"Connection: Upgrade\r\n" + protocol + "Content-Length: 5\r\n\r\nhello":                                              400,
			"Connection: Upgrade\r\n" + protocol + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n":                   400,
		} {
			expect.Equal(t, asked(w.dial(), "GET /v1/calls", more), want, more)
		}
	})
}

// An attempt that comes after the release of its Owner takes nothing, and the release of an attempt that its caller has left
// waits for that.
func TestStreamedReleases(t *testing.T) {
	t.Parallel()
	r := startGated(t)
	s := r.upgrade()
	s.say(1, acquireOf(hold("x", ownerA)))
	attempt := <-r.b.began
	s.say(1, `"leave":true`)
	s.say(2, releaseOf(hold("x", ownerA)))
	s.say(3, releaseOf(hold("x", ownerB)))
	other := <-r.b.began
	expect.Equal(t, other.owner, ownerB, "the release of another")
	close(other.goOn)
	c := s.hears()
	expect.Equal(t, fmt.Sprint(c.Index, c.Outcome), "3lost")
	close(attempt.goOn)
	expect.Equal(t, s.hears().Index, 1)
	close((<-r.b.began).goOn)
	c = s.hears()
	expect.Equal(t, fmt.Sprint(c.Index, c.Outcome), "2ok")
	s.say(4, acquireOf(hold("x", ownerA)))
	c = s.hears()
	expect.Equal(t, fmt.Sprint(c.Outcome, c.Problem.Spent), "unsenttrue")
	r.wants(200, `"holders":[]`, "GET", "/v1/locks/x", "")
}

// A line that is wrong ends the connection.
func TestStreamedCallsThatAreMalformed(t *testing.T) {
	t.Parallel()
	r := start(t, memlock.New(), Options{})
	good := acquireOf(hold("x", ownerA))
	for line, want := range map[string]string{
		`{"index":1,"renew":{}}`: "described", `{"index":1,` + good + `}{}`: "after the JSON", `{"index":1,` + good + `,"index":2}`: "twice",
		`{"index":1,"acquire":{"owner":"` + ownerA + `","ttl_ms":"` + ownerA + `"}}`: "ttl_ms can't be a string",
		"{\"index\":1,\"acquire\":{\"name\":\"\xff\"}}":                              "not UTF-8", `{` + good + `}`: "index is 0", `{"index":1,"Acquire":{}}`: "unknown field", "": "empty",
		`{"index":1,"acquire":{"name":"` + strings.Repeat("n", httpwire.MaxBody) + `"}}`: "",
	} {
		s := r.upgrade()
		must.Get(io.WriteString(s, line+"\n"))(t)
		if want != "" {
			c := s.hears()
			expect.Equal(t, fmt.Sprint(c.Index, c.Outcome), "0invalid", line)
			expect.Equal(t, strings.Contains(c.Problem.Detail, want), true, line, c.Problem.Detail)
			expect.Equal(t, strings.Contains(c.Problem.Detail, ownerA), false, "an owner is shown")
		}
		s.ends()
	}
	s := r.upgrade()
	r.wants(200, "", "POST", "/v1/acquire", hold("held", ownerA))
	s.say(1, acquireOf(waiting("held", ownerB, 60_000)))
	s.say(1, good)
	expect.Equal(t, strings.Contains(s.hears().Problem.Detail, "want a new one"), true)
	expect.Equal(t, s.hears().Index, 1, "the call that waits")
	s.ends()
}

// More calls at once than a connection takes are refused, and the rest are not.
func TestTooManyStreamedCalls(t *testing.T) {
	t.Parallel()
	r := start(t, memlock.New(), Options{MaxStreams: 2 * httpwire.MaxCalls, MaxHolds: 2 * httpwire.MaxCalls})
	r.wants(200, "", "POST", "/v1/acquire", hold("x", ownerA))
	s := r.upgrade()
	for i := range httpwire.MaxCalls {
		s.say(i+1, acquireOf(waiting("x", driver.NewOwner(), 60_000)))
	}
	s.say(httpwire.MaxCalls+1, acquireOf(hold("y", driver.NewOwner())))
	c := s.hears()
	expect.Equal(t, fmt.Sprint(c.Index, c.Outcome, c.Problem.Status), fmt.Sprint(httpwire.MaxCalls+1, "unsent429"))
}

// A right that ends while a connection lasts ends for its calls.
func TestRightsOfStreamedCallsEnd(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tokens")
	must.OK(t, os.WriteFile(path, []byte("me sha256:"+HashToken("t")+" lock *\n"), 0o600))
	access := must.Get(OpenAccess(path, nil))(t)
	r := start(t, memlock.New(), Options{Access: access})
	s := r.upgrade("Authorization: Bearer t")
	s.say(1, acquireOf(hold("x", ownerA)))
	expect.Equal(t, s.hears().Outcome, httpwire.OK)
	must.OK(t, os.WriteFile(path, []byte("other sha256:"+HashToken("u")+" lock *\n"), 0o600))
	access.mu.Lock()
	access.checked = time.Time{}
	access.mu.Unlock()
	s.say(2, acquireOf(hold("y", ownerB)))
	c := s.hears()
	expect.Equal(t, fmt.Sprint(c.Outcome, c.Problem.Status), "denied401")
}

// A right that ends while a call waits for the client to read its answers ends for that call.
func TestRightsOfCallsThatWaitForRoomEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "tokens")
		must.OK(t, os.WriteFile(path, []byte("me sha256:"+HashToken("t")+" lock *\n"), 0o600))
		w := startWired(t, Options{Access: must.Get(OpenAccess(path, nil))(t)})
		s := upgraded(t, w.dial(), "Authorization: Bearer t")
		go func() {
			for i := range 10_000 {
				if _, err := fmt.Fprintf(s, "{\"index\":%d,%s}\n", i+1, acquireOf(hold(fmt.Sprint("x", i), driver.NewOwner()))); err != nil {
					return
				}
			}
		}()
		synctest.Wait() // the answers to its first calls are more than wait for a client
		held := w.s.quota.allHolds()
		must.OK(t, os.WriteFile(path, []byte("other sha256:"+HashToken("u")+" lock *\n"), 0o600))
		time.Sleep(2 * time.Second)
		for s.hears().Outcome != httpwire.Denied {
		}
		synctest.Wait()
		expect.Equal(t, w.s.quota.allHolds(), held, "holds of a client that has no right any more")
	})
}
