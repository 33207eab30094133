package httplock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// streaming opens a backend of servers with a connection of calls to the first one.
func streaming(t *testing.T, servers ...*fake) *Backend {
	t.Helper()
	for _, f := range servers {
		f.joins = httpwire.MaxCalls
	}
	b := openAll(t, servers...)
	b.open(t)
	return b
}

// open makes calls until there is a connection for them.
func (b *Backend) open(t *testing.T) {
	t.Helper()
	eventually(t, "a connection of calls", func() bool { return b.caller.current() != nil })
}

// stream returns the connection of calls, or nil.
func (b *Backend) stream() *callStream {
	b.caller.mu.Lock()
	defer b.caller.mu.Unlock()
	return b.caller.stream
}

// sent returns how many calls are under way over the connection, all of which are sent; -1: not all are.
func (b *Backend) sent() int {
	s := b.stream()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) > 0 {
		return -1
	}
	return len(s.underWay)
}

// acquireAll acquires locks at once, and returns their outcomes by name.
func acquireAll(ctx context.Context, b *Backend, names ...string) map[string]error {
	type outcome struct {
		name string
		err  error
	}
	all := make(chan outcome)
	for _, name := range names {
		go func() {
			_, err := b.Acquire(ctx, requestFor(name))
			all <- outcome{name, err}
		}()
	}
	errs := map[string]error{}
	for range names {
		o := <-all
		errs[o.name] = o.err
	}
	return errs
}

func refused(c httpwire.Call, kind httpwire.Kind) string {
	return fmt.Sprintf(`{"index":%d,"outcome":%q,"problem":{"distlock":%[2]q,"detail":"says %[2]s"}}`, c.Index, kind)
}

// Calls that come close together share a connection, and each has its own answer.
func TestStreamedCalls(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.streams(func(c httpwire.Call, say func(string)) {
		if c.Release != nil || c.Acquire.Name == "ok" {
			say(success(c))
			return
		}
		say(refused(c, httpwire.Kind(c.Acquire.Name)))
	})
	b := streaming(t, f)
	errs := acquireAll(t.Context(), b, "ok", "held", "invalid", "unsupported", "unknown")
	for name, want := range map[string]error{"ok": nil, "held": driver.ErrHeld, "invalid": driver.ErrInvalid, "unsupported": driver.ErrUnsupported} {
		expect.Be(t, errs[name], want, name)
	}
	noFact(t, "unknown", errs["unknown"])
	expect.OK(t, b.Release(t.Context(), requestFor("ok").Hold))
	expect.Equal(t, fmt.Sprint(f.called("/v1/calls"), f.called("/v1/acquire"), f.called("/v1/release")), "1 0 0")
}

// A call that is alone is a request.
func TestLoneCallsAreRequests(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.joins = httpwire.MaxCalls
	b := openAll(t, f)
	for range 3 {
		b.caller.mu.Lock()
		b.caller.last = time.Now().Add(-closeTime)
		b.caller.mu.Unlock()
		expect.OK(t, b.Release(t.Context(), requestFor("x").Hold))
	}
	expect.Equal(t, fmt.Sprint(f.called("/v1/calls"), f.called("/v1/release")), "0 3")
}

// What a server says that it has not done goes to the next one, and nothing else does.
func TestStreamedCallsGoOn(t *testing.T) {
	t.Parallel()
	f, next := newFake(t), newFake(t)
	f.answer("/v1/acquire", f.problem(httpwire.Unsent))
	var lines []string // are said when all calls are there: the first answer lets the client go to the next server
	f.streams(func(c httpwire.Call, say func(string)) {
		line := refused(c, httpwire.Kind(c.Acquire.Name))
		if c.Acquire.Name == "spent" {
			line = fmt.Sprintf(`{"index":%d,"outcome":"unsent","problem":{"distlock":"unsent","spent":true}}`, c.Index)
		}
		if lines = append(lines, line); len(lines) == 3 {
			say(strings.Join(lines, "\n"))
		}
	})
	b := streaming(t, f, next)
	errs := acquireAll(t.Context(), b, "unsent", "denied", "spent")
	expect.OK(t, errs["unsent"])
	expect.OK(t, errs["denied"])
	expect.Be(t, errs["spent"], driver.ErrSpent)
	expect.Equal(t, next.called("/v1/acquire"), 2)
}

// Without a connection, calls are requests: to a server that is older, behind a proxy that opens none, or that refuses more.
func TestServersThatDoNotStream(t *testing.T) {
	t.Parallel()
	for what, refuse := range map[string]http.HandlerFunc{
		"an older server": nil, "not found": http.NotFound, "hang up": hangUp,
		"a proxy's page":   func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") },
		"another protocol": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusSwitchingProtocols) },
		"full":             newFake(t).problem(httpwire.Unsent), "unsupported": newFake(t).problem(httpwire.Unsupported),
		"denied": newFake(t).problem(httpwire.Denied),
	} {
		f := newFake(t)
		want := 0
		if refuse != nil {
			f.answer("/v1/calls", refuse)
			f.joins, want = httpwire.MaxCalls, 1
		}
		b := openAll(t, f)
		for range 3 {
			expect.OK(t, b.Release(t.Context(), requestFor("x").Hold), what)
		}
		eventually(t, what, func() bool { b.caller.current(); return f.called("/v1/calls") >= want })
		for name, err := range acquireAll(t.Context(), b, "a", "b", "c") {
			expect.OK(t, err, what, name)
		}
		expect.Equal(t, fmt.Sprint(min(f.called("/v1/calls"), 1), f.called("/v1/release"), f.called("/v1/acquire")), fmt.Sprint(want, 3, 3), what) // net/http repeats a request if the connection ends
	}
}

// An answer that can't be is no fact, and ends the connection. The calls before it have theirs.
func TestMalformedStreams(t *testing.T) {
	t.Parallel()
	for what, line := range map[string]string{
		"not JSON": `granted`, "no outcome": `{"index":%d}`, "another index": `{"index":99,"outcome":"ok"}`,
		"ok with a problem": `{"index":%d,"outcome":"ok","problem":{"distlock":"held"}}`, "held without one": `{"index":%d,"outcome":"held"}`,
		"two kinds": `{"index":%d,"outcome":"held","problem":{"distlock":"lost"}}`, "no grant": `{"index":%d,"outcome":"ok"}`,
		"no TTL":                   `{"index":%d,"outcome":"ok","grant":{"fence":"7","fences":"1"}}`,
		"too many fences":          `{"index":%d,"outcome":"ok","grant":{"fence":"7","fences":"2","ttl_ms":60000}}`,
		"a kind that is not known": `{"index":%d,"outcome":"gone","problem":{"distlock":"gone"}}`,
		"the end":                  "",
	} {
		f := newFake(t)
		f.streams(func(c httpwire.Call, say func(string)) {
			switch {
			case c.Acquire.Name != "second":
				say(success(c))
			case line == "":
				hangUp(nil, nil)
			case strings.Contains(line, "%d"):
				say(fmt.Sprintf(line, c.Index))
			default:
				say(line)
			}
		})
		b := streaming(t, f)
		for _, name := range []string{"first", "second", "third"} {
			_, err := b.Acquire(t.Context(), requestFor(name))
			if name == "second" {
				noFact(t, what, err)
			} else {
				expect.OK(t, err, what, name)
			}
		}
		expect.Equal(t, f.called("/v1/acquire") <= 1, true, "it was sent over the connection")
	}
}

// A server that has left a call without an answer is asked again what it can do: it may have been replaced.
func TestServerThatComesBackWithLess(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.streams(func(httpwire.Call, func(string)) {
		f.set(func() { f.caps.Fence = false })
		hangUp(nil, nil)
	})
	b := streaming(t, f)
	_, err := b.Acquire(t.Context(), requestFor("x"))
	noFact(t, "the call without an answer", err)
	_, err = b.Acquire(t.Context(), requestFor("x"))
	expect.Be(t, err, driver.ErrUnsent)
	expect.Equal(t, f.called("/v1/acquire"), 0, "it grants without a fence")
}

// A call without an answer holds up no other. A caller that goes says so, and does not know the outcome.
func TestSilentCallHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	left := make(chan uint64, 1)
	f.streams(func(c httpwire.Call, say func(string)) {
		switch {
		case c.Leave:
			left <- c.Index
		case c.Acquire.Name != "silent":
			say(success(c))
		}
	})
	b := streaming(t, f)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { _, err := b.Acquire(ctx, requestFor("silent")); done <- err }()
	eventually(t, "a call is under way", func() bool { return b.sent() == 1 })
	for range 10 {
		_, err := b.Acquire(t.Context(), requestFor("behind"))
		expect.OK(t, err)
	}
	cancel()
	err := <-done
	noFact(t, "the silent call", err)
	expect.Be(t, err, context.Canceled)
	expect.Equal(t, <-left, 1)
	_, err = b.Acquire(t.Context(), requestFor("behind"))
	expect.OK(t, err)
	expect.Equal(t, f.called("/v1/calls"), 1, "connections")
}

// A connection whose token is refused gets no more calls. The next one has the next token.
func TestStreamWithTheNextToken(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.joins = httpwire.MaxCalls
	const denied = `"distlock":"denied","status":401,"detail":"the server doesn't know this token"`
	var valid atomic.Pointer[string]
	set := func(token string) { valid.Store(&token) }
	knows := func(r *http.Request) bool { return r.Header.Get("Authorization") == "Bearer "+*valid.Load() }
	f.answer("/v1/calls", func(w http.ResponseWriter, r *http.Request) {
		f.upgrade(w, func(c httpwire.Call, say func(string)) {
			if knows(r) {
				say(success(c))
				return
			}
			say(fmt.Sprintf(`{"index":%d,"outcome":"denied","problem":{%s}}`, c.Index, denied))
		})
	})
	f.answer("/v1/release", func(w http.ResponseWriter, r *http.Request) {
		f.mark(w)
		if knows(r) {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		w.Header().Set("Content-Type", httpwire.ProblemType)
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprintf(w, "{%s}", denied)
	})
	set("one")
	b, err := OpenWith(t.Context(), f.URL+"/?timeout=1m", &OpenOptions{Credentials: func(context.Context) (string, string, error) { return "", *valid.Load(), nil }})
	must.OK(t, err)
	defer b.Close()
	for n, token := range []string{"one", "two"} {
		b.open(t)
		set(token)
		expect.OK(t, b.Release(t.Context(), requestFor("x").Hold), token)
		expect.Equal(t, f.called("/v1/release"), 2*n, "requests: the first is refused, too")
	}
	b.open(t)
	expect.OK(t, b.Release(t.Context(), requestFor("x").Hold))
	expect.Equal(t, fmt.Sprint(f.called("/v1/calls"), f.called("/v1/release")), "2 2")
}

// The answer to a call whose caller has gone says nothing about the server.
func TestAnswerWithoutACaller(t *testing.T) {
	t.Parallel()
	f, next := newFake(t), newFake(t)
	left := make(chan struct{}, 1)
	f.streams(func(c httpwire.Call, say func(string)) {
		switch {
		case c.Leave:
			say(refused(c, httpwire.Unknown))
			left <- struct{}{}
		case c.Acquire.Name != "left":
			say(success(c))
		}
	})
	b := streaming(t, f, next)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { _, err := b.Acquire(ctx, requestFor("left")); done <- err }()
	eventually(t, "a call is under way", func() bool { return b.sent() == 1 })
	cancel()
	noFact(t, "the call that was left", <-done)
	<-left
	for range 2 {
		_, err := b.Acquire(t.Context(), requestFor("behind"))
		expect.OK(t, err)
	}
	expect.Equal(t, fmt.Sprint(f.called("/v1/calls"), next.called("/v1/calls"), next.called("/v1/acquire")), "1 0 0")
}

// A caller that goes before its call was sent has sent nothing.
func TestCallerGoesBeforeItsCallIsSent(t *testing.T) {
	t.Parallel()
	b := openAll(t, newFake(t))
	_, conn := io.Pipe()
	s := newCallStream(b.caller, b.client.servers[0], struct {
		io.Reader
		io.WriteCloser
	}{nil, conn})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	a := s.do(ctx, "release", request{body: []byte("{}")})
	expect.Be(t, a.err, driver.ErrUnsent)
	expect.Be(t, a.err, context.Canceled)
	expect.Equal(t, fmt.Sprint(len(s.underWay), string(s.take(nil))), "0")
}

// A connection over which no answer has come within a call's time is given up.
func TestSilentConnectionIsGivenUp(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.streams(func(c httpwire.Call, say func(string)) {})
	b := streaming(t, f)
	first := b.stream()
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err := b.Acquire(ctx, requestFor("x"))
	expect.Be(t, err, context.DeadlineExceeded)
	if !errors.Is(err, driver.ErrUnsent) { // the machine was busy
		eventually(t, "it is given up", func() bool { return b.stream() != first })
		b.caller.mu.Lock()
		defer b.caller.mu.Unlock()
		expect.Equal(t, time.Until(b.caller.again) > againTime, true, "another one is opened soon, which may be as silent")
	}
}

// A server that drains gets no more calls. Those under way have their answers.
func TestDrainingServerGetsNoMoreCalls(t *testing.T) {
	t.Parallel()
	f, next := newFake(t), newFake(t)
	answer := make(chan struct{})
	f.streams(func(c httpwire.Call, say func(string)) {
		say(`{"index":0,"outcome":"unsent","problem":{"distlock":"unsent","detail":"the server shuts down"}}`)
		go func() { <-answer; say(success(c)) }()
	})
	f.answer("/v1/acquire", f.problem(httpwire.Unsent))
	b := streaming(t, f, next)
	done := make(chan error)
	go func() { _, err := b.Acquire(t.Context(), requestFor("before")); done <- err }()
	eventually(t, "the server has said it", func() bool { return b.stream() == nil })
	f.answer("/v1/calls", f.problem(httpwire.Unsent))
	_, err := b.Acquire(t.Context(), requestFor("behind"))
	expect.OK(t, err)
	expect.Equal(t, next.called("/v1/acquire"), 1)
	close(answer)
	expect.OK(t, <-done)
	eventually(t, "the connection ends", func() (over bool) { f.set(func() { over = f.open == 0 }); return over })
}

// A connection that gets no more calls ends with the last one, also if its caller goes.
func TestLastCallerLeavesADrainingServer(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.streams(func(c httpwire.Call, say func(string)) {
		if !c.Leave { // no answer to that, as of a server that is dead
			say(`{"index":0,"outcome":"unsent","problem":{"distlock":"unsent","detail":"the server shuts down"}}`)
		}
	})
	b := streaming(t, f)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- b.Release(ctx, requestFor("x").Hold) }()
	eventually(t, "the server has said it", func() bool { return b.stream() == nil })
	cancel()
	noFact(t, "a call without an answer", <-done)
	eventually(t, "the connection ends", func() (over bool) { f.set(func() { over = f.open == 0 }); return over })
}

// A connection that was silent for long is not used: a proxy may be about to end it.
func TestStillConnectionIsNotUsed(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	b := streaming(t, f)
	expect.OK(t, b.Release(t.Context(), requestFor("x").Hold))
	b.caller.mu.Lock()
	b.caller.last = time.Now().Add(-2 * stillTime)
	b.caller.mu.Unlock()
	expect.OK(t, b.Release(t.Context(), requestFor("x").Hold))
	expect.Equal(t, f.called("/v1/release"), 1, "requests")
	eventually(t, "the connection ends", func() (over bool) { f.set(func() { over = f.open == 0 }); return over })
	b.open(t)
}

// Calls that are too many for a connection wait, and open no other. An acquire never takes the place of a release, and a call that
// waits has not been sent.
func TestMoreCallsThanAConnectionTakes(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	var silent atomic.Bool
	silent.Store(true)
	f.streams(func(c httpwire.Call, say func(string)) {
		if c.Release != nil && c.Release.Name == "answered" || !silent.Load() && !c.Leave {
			say(success(c))
		}
	})
	b := streaming(t, f)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	const sent, waiting = httpwire.MaxCalls - releasesAtOnce, 100
	for range sent + waiting {
		go func() { ended <- expect.Err(b.Acquire(ctx, requestFor("x"))) }()
	}
	eventually(t, "as many as there is room for are under way", func() bool { return b.sent() == sent })
	expect.OK(t, b.Release(t.Context(), requestFor("answered").Hold))
	expect.Equal(t, b.sent(), sent)
	cancel()
	unsent := 0
	for range sent + waiting {
		if err := <-ended; errors.Is(err, driver.ErrUnsent) {
			unsent++
		} else {
			noFact(t, "a call under way", err)
		}
	}
	expect.Equal(t, unsent, waiting, "calls were not sent")
	silent.Store(false)
	expect.OK(t, expect.Err(b.Acquire(t.Context(), requestFor("x"))), "with room again")
	expect.Equal(t, f.called("/v1/acquire"), 0, "requests")
}

// Requests are so many at once, and the others wait. Neither renewals nor releases wait for them, nor does a call for a connection that
// gets no more.
func TestPlaces(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.answer("/v1/acquire", silent)
	b := openAll(t, f)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	for range requestsAtOnce + 10 {
		go func() { ended <- expect.Err(b.Acquire(ctx, requestFor("x"))) }()
	}
	eventually(t, "as many as there is room for are under way", func() bool { return f.called("/v1/acquire") == requestsAtOnce })
	expect.OK(t, b.Release(t.Context(), requestFor("x").Hold))
	expect.OK(t, b.Renew(t.Context(), holds(1))[0])
	expect.Equal(t, f.called("/v1/acquire"), requestsAtOnce)
	cancel()
	for range requestsAtOnce + 10 {
		expect.Be(t, <-ended, context.Canceled)
	}
	full, gone := make(places), make(chan struct{})
	close(gone)
	expect.Equal(t, full.take(t.Context(), gone), false)
}

// Close ends the calls under way, whose outcome is unknown.
func TestCloseEndsStreamedCalls(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.streams(func(httpwire.Call, func(string)) {})
	b := streaming(t, f)
	done := make(chan error)
	go func() { done <- b.Release(t.Context(), requestFor("x").Hold) }()
	eventually(t, "a call is sent", func() bool { return b.sent() == 1 })
	expect.OK(t, b.Close())
	err := <-done
	noFact(t, "a call that was sent", err)
	expect.Be(t, err, errClosing)
}

// Each call gets its own answer, whatever became of the calls before it: answered late, left, or cut off with the connection.
func TestAnswersAreNotMixed(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	grant := func(r *httpwire.Request) *httpwire.Grant {
		return &httpwire.Grant{Fence: uint64(len(r.Name)), Fences: 1, TTL: 60_000}
	}
	f.answer("/v1/acquire", func(w http.ResponseWriter, r *http.Request) {
		var m httpwire.Request
		expect.OK(t, json.NewDecoder(r.Body).Decode(&m))
		f.mark(w)
		_ = json.NewEncoder(w).Encode(grant(&m))
	})
	var lines atomic.Int64
	f.streams(func(c httpwire.Call, say func(string)) {
		if c.Acquire == nil {
			return
		}
		if lines.Add(1)%250 == 0 {
			say("this ends the connection")
		}
		answer := httpwire.Called{Index: c.Index, Outcome: httpwire.OK, Grant: grant(c.Acquire)}
		go say(string(httpwire.AppendCalled(nil, &answer))) // in any order
	})
	b := streaming(t, f)
	var calls sync.WaitGroup
	for i := range 50 {
		calls.Add(1)
		go func() {
			defer calls.Done()
			for j := range 50 {
				name := strings.Repeat("n", 1+(7*i+j)%200)
				ctx, cancel := context.WithCancel(t.Context())
				if j%3 == 0 {
					go cancel()
				}
				g, err := b.Acquire(ctx, requestFor(name))
				cancel()
				if err == nil {
					expect.Equal(t, g.Fence, uint64(len(name)), "the answer to another call")
				}
			}
		}()
	}
	calls.Wait()
}
