package httplock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/bounded"
	"github.com/distlock/distlock/internal/httpwire"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// calls makes each call that can state a fact.
func calls(ctx context.Context, b *Backend, r driver.Request) map[string]error {
	_, acquired := b.Acquire(ctx, r)
	_, watched := b.Watch(ctx, r)
	_, inspected := b.Inspect(ctx, r.Name)
	return map[string]error{
		"Acquire": acquired, "Watch": watched, "Inspect": inspected,
		"Renew":   b.Renew(ctx, []driver.Hold{r.Hold})[0],
		"Release": b.Release(ctx, r.Hold),
		"List":    b.List(ctx, "", func(string) bool { return true }),
		"Revoke":  b.Revoke(ctx, r.Hold),
	}
}

var callPaths = []string{
	"/v1/acquire", "/v1/watch", "/v1/renew", "/v1/release", "/v1/locks", "/v1/locks/job", "/v1/locks/job/ask",
}

// Answers of a proxy prove nothing, and neither do answers of other programs that know the protocol a little.
func TestAnswersOfOthersAreUnknown(t *testing.T) {
	t.Parallel()
	text := func(status int, contentType, body string, header ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", contentType)
			for i := 0; i+1 < len(header); i += 2 {
				w.Header().Set(header[i], header[i+1])
			}
			w.WriteHeader(status)
			fmt.Fprint(w, body)
		}
	}
	mark := []string{httpwire.BackendHeader, "store:1%2Fa%20b"}
	for what, answer := range map[string]http.HandlerFunc{
		"404":                          text(404, "text/html", "<h1>not found</h1>"),
		"410":                          text(410, "text/plain", "gone"),
		"423":                          text(423, "application/json", "{}"),
		"204":                          text(204, "text/plain", ""),
		"200 HTML":                     text(200, "text/html", "<html>Log in</html>"),
		"200 JSON without the backend": text(200, "application/json", `{"fence":"7","fences":"1","ttl_ms":60000,"name":"job","names":[]}`),
		"200 HTML with the backend":    text(200, "text/html", "<html>", mark...),
		"204 with the backend, to all": text(299, "text/html", "", mark...),
		"a redirect":                   text(302, "text/html", "", "Location", "https://login.example/"),
		"gone without the backend":     text(410, httpwire.ProblemType, `{"distlock":"lost"}`),
		"held without the backend":     text(423, httpwire.ProblemType, `{"distlock":"held"}`),
		"gone without a kind":          text(410, httpwire.ProblemType, `{"status":410}`, mark...),
		"gone as JSON":                 text(410, "application/json", `{"distlock":"lost"}`, mark...),
		"an error that is ok":          text(500, httpwire.ProblemType, `{"distlock":"ok"}`, mark...),
		"a kind that is not known":     text(410, httpwire.ProblemType, `{"distlock":"gone"}`, mark...),
		"half a problem":               text(410, httpwire.ProblemType, `{"distlock":"lost"`, mark...),
		"unknown":                      text(504, httpwire.ProblemType, `{"distlock":"unknown"}`, mark...),
		"another backend's":            text(410, httpwire.ProblemType, `{"distlock":"lost"}`, httpwire.BackendHeader, "other"),
		"another backend's unsent":     text(421, httpwire.ProblemType, `{"distlock":"unsent"}`, httpwire.BackendHeader, "other"),
		"the end of the connection":    hangUp,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			b := openAll(t, f)
			for _, path := range callPaths {
				f.answer(path, answer)
			}
			for call, err := range calls(soon(t), b, requestFor("job")) {
				if strings.HasPrefix(what, "another") && errors.Is(err, driver.ErrUnsent) && !driver.Final(err) {
					continue // it is not asked again before it has the backend again
				}
				noFact(t, call, err)
				if err != nil && !strings.Contains(err.Error(), f.URL) {
					t.Errorf("%s does not name the server: %v", call, err)
				}
			}
		})
	}
}

// The answer to another request, which a proxy mixed up with this one, states nothing, whatever it says.
func TestAnswersToOtherRequests(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	b := openAll(t, f)
	f.set(func() { f.mixed = true })
	for _, kind := range []httpwire.Kind{httpwire.OK, httpwire.Held, httpwire.Lost, httpwire.Invalid, httpwire.Denied, httpwire.Unsent} {
		for _, path := range callPaths {
			if f.answer(path, nil); kind != httpwire.OK {
				f.answer(path, f.problem(kind))
			}
		}
		for call, err := range calls(soon(t), b, requestFor("job")) {
			noFact(t, call+": "+string(kind), err)
		}
	}
}

// A grant is believed only as a whole.
func TestMalformedGrants(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	b := openAll(t, f)
	for _, body := range []string{
		``, `null`, `{}`, `[]`, `{"fence":"7","fences":"1","ttl_ms":60`, `{"fence":"7","fences":"1"}`, `{"fences":"1","ttl_ms":60000}`,
		`{"fence":"7","ttl_ms":60000}`, `{"fence":"7","fences":"2","ttl_ms":60000}`, `{"fence":"7","fences":"1","ttl_ms":-1}`,
		`{"fence":"9223372036854775808","fences":"1","ttl_ms":60000}`, `{"fence":7,"fences":1,"ttl_ms":60000}`,
	} {
		f.answer("/v1/acquire", func(w http.ResponseWriter, _ *http.Request) {
			f.mark(w)
			fmt.Fprint(w, body)
		})
		_, err := b.Acquire(soon(t), requestFor("job"))
		noFact(t, body, err)
	}
}

// What a server does not let in was not done, and may be let in later: only what is asked once ends with that, and an attempt of a
// client that never had a right.
func TestDenied(t *testing.T) {
	t.Parallel()
	for _, worked := range []bool{false, true} {
		f := newFake(t)
		b := openAll(t, f)
		r := requestFor("job")
		if worked {
			expect.OK(t, expect.Err(b.Acquire(t.Context(), r)))
		}
		for _, path := range callPaths {
			f.answer(path, f.problem(httpwire.Denied))
		}
		once := map[string]bool{"Inspect": true, "List": true, "Revoke": true, "Acquire": !worked}
		for call, err := range calls(soon(t), b, r) {
			if call == "Watch" {
				expect.OK(t, err, "a watch that is armed later")
				continue
			}
			if errors.Is(err, driver.ErrUnsent) == once[call] || errors.Is(err, driver.ErrInvalid) != once[call] || driver.Final(err) != once[call] {
				t.Errorf("%s, worked before %v: %v", call, worked, err)
			}
			if !strings.Contains(err.Error(), "at "+f.URL+": the fake says") {
				t.Errorf("%s does not name the server: %v", call, err)
			}
		}
	}
}

// Facts arrive as what they are, and name the server.
func TestFacts(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	b := openAll(t, f)
	for kind, want := range map[httpwire.Kind]error{
		httpwire.Lost: driver.ErrLost, httpwire.Invalid: driver.ErrInvalid,
		httpwire.Unsent: driver.ErrUnsent, httpwire.Held: driver.ErrHeld,
	} {
		for _, path := range callPaths {
			f.answer(path, f.problem(kind))
		}
		for call, err := range calls(soon(t), b, requestFor("job")) {
			if call == "Renew" && (kind == httpwire.Lost || kind == httpwire.Held) {
				noFact(t, "a renewal of several holds", err)
				continue
			}
			if call == "Watch" && kind == httpwire.Unsent {
				expect.OK(t, err, "a watch that is armed later")
				continue
			}
			expect.Be(t, err, want, call, kind)
			if kind != httpwire.Held && !strings.Contains(err.Error(), "at "+f.URL+": the fake says") {
				t.Errorf("%s, %s does not name the server: %v", call, kind, err)
			}
		}
	}
}

// The next server is tried if the one before it has certainly done nothing, and it stays the one in use.
func TestNextServer(t *testing.T) {
	t.Parallel()
	for what, harm := range map[string]func(*fake){
		"gone":      func(f *fake) { f.Close() },
		"draining":  func(f *fake) { f.answer("/v1/acquire", f.problem(httpwire.Unsent)) },
		"not known": func(f *fake) { f.set(func() { f.name = "store:2" }); f.answer("/v1/acquire", nil) },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			one, two := newFake(t), newFake(t)
			b := openAll(t, one, two)
			if _, err := b.Acquire(soon(t), requestFor("job")); err != nil || two.called("/v1/acquire") != 0 {
				t.Fatalf("the first server is used first: %v", err)
			}
			b.client.transport.CloseIdleConnections() // one that has just ended may look alive
			harm(one)
			if what == "not known" {
				_, err := b.Acquire(soon(t), requestFor("job"))
				noFact(t, "an answer of another backend", err)
			}
			for range 3 {
				must.Get(b.Acquire(soon(t), requestFor("job")))(t)
			}
			if n, before := two.called("/v1/acquire"), one.called("/v1/acquire"); n != 3 || before > 2 {
				t.Errorf("the second server got %d acquires of 3, the first %d", n, before)
			}
		})
	}
}

// A call that may have been executed is not sent again, and the next call goes to the next server. A call that
// only reads is sent again.
func TestNothingIsSentTwice(t *testing.T) {
	t.Parallel()
	for what, h := range map[string]http.HandlerFunc{"no answer": hangUp, "502": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(502) }} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			one, two := newFake(t), newFake(t)
			b := openAll(t, one, two)
			for _, path := range callPaths {
				one.answer(path, h)
			}
			two.answer("/v1/locks", func(w http.ResponseWriter, _ *http.Request) {
				two.mark(w)
				fmt.Fprint(w, `{"names":["a"]}`)
			})
			r := requestFor("job")
			for path, call := range map[string]func() error{
				"/v1/acquire":       func() error { _, err := b.Acquire(soon(t), r); return err },
				"/v1/renew":         func() error { return b.Renew(soon(t), []driver.Hold{r.Hold})[0] },
				"/v1/release":       func() error { return b.Release(soon(t), requestFor("job").Hold) }, // that of r goes to both servers
				"/v1/locks/job/ask": func() error { return b.Revoke(soon(t), r.Hold) },
			} {
				b.client.current.Store(0)
				noFact(t, path, call())
				if one.called(path) != 1 || two.called(path) != 0 {
					t.Errorf("%s was sent %d and %d times", path, one.called(path), two.called(path))
				}
				if err := call(); err != nil || two.called(path) != 1 {
					t.Errorf("%s of the next call: %v", path, err)
				}
			}
			b.client.current.Store(0)
			expect.OK(t, b.List(soon(t), "", func(string) bool { return true }), "List")
		})
	}
}

// A server that works, and whose backend does not, is left by renewals too.
func TestRenewalsLeaveAFailedBackend(t *testing.T) {
	t.Parallel()
	for _, outcome := range []string{"unknown", "unsent"} {
		one, two := newFake(t), newFake(t)
		b := openAll(t, one, two)
		one.answer("/v1/renew", func(w http.ResponseWriter, _ *http.Request) {
			one.mark(w)
			fmt.Fprintf(w, `{"index":0,"outcome":%q}`+"\n"+`{"index":1,"outcome":%q}`+"\n", outcome, outcome)
		})
		holds := []driver.Hold{requestFor("a").Hold, requestFor("b").Hold}
		for _, err := range b.Renew(soon(t), holds) {
			noFact(t, "a renewal without an outcome", err)
		}
		for _, err := range b.Renew(soon(t), holds) {
			expect.OK(t, err, outcome, "the next renewal")
		}
		one.answer("/v1/renew", func(w http.ResponseWriter, _ *http.Request) {
			one.mark(w)
			fmt.Fprintf(w, `{"index":0,"outcome":%q}`+"\n"+`{"index":1,"outcome":"ok"}`+"\n", outcome)
		})
		b.client.current.Store(0)
		if errs := b.Renew(soon(t), holds); errs[0] == nil || errs[1] != nil || b.client.current.Load() != 0 {
			t.Errorf("%v; a server that renews some of the holds is left", errs)
		}
	}
}

// Each call is a request of its own, also one for the same hold at the same time: nothing is remembered or shared.
func TestEachCallIsARequest(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	b := openAll(t, f)
	r := requestFor("job")
	for path, call := range map[string]func() error{
		"/v1/acquire": func() error { _, err := b.Acquire(soon(t), r); return err },
		"/v1/renew":   func() error { return b.Renew(soon(t), []driver.Hold{r.Hold})[0] },
		"/v1/release": func() error { return b.Release(soon(t), r.Hold) },
	} {
		for n := 1; n <= 2; n++ {
			if err := call(); err != nil || f.called(path) != n {
				t.Errorf("%d requests to %s after %d calls: %v", f.called(path), path, n, err)
			}
		}
		f.answer(path, func(w http.ResponseWriter, r *http.Request) {
			eventually(t, "a second request to "+path, func() bool { return f.called(path) == 4 })
			f.problem(httpwire.Unknown)(w, r)
		})
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() { noFact(t, path, call()) })
		}
		both.Wait()
	}
}

// A server that comes back with another backend gets no call before it has the old one again.
func TestOtherBackend(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	b := openAll(t, f)
	f.set(func() { f.name = "store:2" })
	_, err := b.Acquire(soon(t), requestFor("job"))
	noFact(t, "an answer of another backend", err)
	before := f.called("/v1/acquire")
	for call, err := range calls(soon(t), b, requestFor("job")) {
		if call == "Watch" { // it is armed later
			expect.OK(t, err)
			continue
		}
		if !errors.Is(err, driver.ErrUnsent) || driver.Final(err) || !strings.Contains(err.Error(), `"store:2", and was "store:1/a b"`) {
			t.Errorf("%s: %v", call, err)
		}
	}
	expect.Equal(t, f.called("/v1/acquire")-before, 0, "acquires were sent to another backend")
	f.set(func() { f.name = "store:1/a b" })
	expect.OK(t, expect.Err(b.Acquire(soon(t), requestFor("job"))), "with the old backend")
}

// A server that was restarted and can do less is not used; one that can do more is.
func TestOtherCaps(t *testing.T) {
	t.Parallel()
	one, two := newFake(t), newFake(t)
	b := openAll(t, one, two)
	b.client.transport.CloseIdleConnections()
	one.Close()
	two.set(func() { two.caps.Floor = true; two.caps.MaxTTL = driver.MaxTTL })
	if _, err := b.Acquire(soon(t), requestFor("job")); err == nil || !strings.Contains(err.Error(), "no longer") {
		t.Errorf("MaxTTL is new: %v", err)
	}
	two.set(func() { two.caps.MaxTTL = 0 })
	expect.OK(t, expect.Err(b.Acquire(soon(t), requestFor("job"))), "Floor is new")
}

// Each call ends with its context when a server is silent, and says which server that was.
func TestBlackHole(t *testing.T) {
	t.Parallel()
	one, two := newFake(t), newFake(t)
	b := openAll(t, one, two)
	for _, path := range append(callPaths, "/v1") {
		one.answer(path, silent)
	}
	r := requestFor("job")
	var err error
	for most := 50 * time.Millisecond; one.called("/v1/acquire") == 0; most *= 2 { // a busy machine may take longer to send
		b.client.current.Store(0)
		ctx, cancel := context.WithTimeout(t.Context(), most)
		_, err = b.Acquire(ctx, r)
		cancel()
	}
	noFact(t, "silence", err)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), one.URL+": no answer") {
		t.Errorf("got %v", err)
	}
	if _, err := b.Acquire(soon(t), r); err != nil || two.called("/v1/acquire") != 1 {
		t.Errorf("the next call: %v", err)
	}
	b.client.current.Store(0)
	noFact(t, "an impatient caller", b.Release(untilCalled(t, one, "/v1/release", 1), r.Hold))
	expect.Equal(t, b.client.current.Load(), 0, "a caller that gave up makes the client leave the server")
}

// A caller whose own time is over proves nothing about a server, which is left by the limit of a call, and by callers once it
// has answered nobody for long.
func TestWhoLeavesASilentServer(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	soon, stop := context.WithDeadline(t.Context(), time.Now())
	defer stop()
	for _, c := range []struct {
		what          string
		caller, limit context.Context
		unanswered    time.Duration
		want          int32
	}{
		{"a caller that gives up", ended, t.Context(), 0, 0},
		{"the deadline of a caller", soon, t.Context(), 0, 0},
		{"the limit of a call", t.Context(), soon, 0, 1},
		{"a caller that gives up, after a long silence", ended, t.Context(), 2 * silentTime, 1},
		{"the deadline of a caller, after a long silence", soon, t.Context(), 2 * silentTime, 1},
	} {
		b := openAll(t, newFake(t), newFake(t))
		s := b.client.inUse()
		s.asked()
		s.unanswered.Add(-int64(c.unanswered))
		b.client.leave(bounded.New(c.caller, c.limit), s)
		expect.Equal(t, b.client.current.Load(), c.want, c.what)
	}
}

// A release goes also to where an attempt may yet arrive, and that its Owner had nothing is no fact before that server has answered.
func TestReleaseFollowsItsAttempt(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		one, two string // what each server says to the release; "": nothing
		want     error
		sent     int // to the first one by the next release, which may have become the one in use
	}{
		"both had nothing":              {"lost", "lost", driver.ErrLost, 0},
		"it has arrived":                {"ok", "lost", nil, 0},
		"another attempt was granted":   {"", "ok", nil, 1},
		"it may yet arrive":             {"unknown", "lost", nil, 1},
		"it has no rights there":        {"denied", "lost", driver.ErrUnsent, 1},
		"its release may have ended it": {"lost", "unknown", nil, 1},
	} {
		one, two := newFake(t), newFake(t)
		b := openAll(t, one, two)
		one.answer("/v1/acquire", hangUp)
		r := requestFor("x")
		noFact(t, what, expect.Err(b.Acquire(t.Context(), r)))
		expect.Equal(t, b.client.current.Load(), 1, what)
		for f, says := range map[*fake]string{one: c.one, two: c.two} {
			switch says {
			case "":
				f.answer("/v1/release", silent)
			case "ok":
			default:
				f.answer("/v1/release", f.problem(httpwire.Kind(says)))
			}
		}
		if err := b.Release(t.Context(), r.Hold); c.want != nil || strings.Contains(what, "granted") || c.one == "ok" {
			expect.Be(t, err, c.want, what)
		} else {
			noFact(t, what, err)
		}
		eventually(t, what, func() bool { return one.called("/v1/release") == 1 })
		one.answer("/v1/release", nil)
		two.answer("/v1/release", nil)
		expect.OK(t, b.Release(t.Context(), r.Hold), what)
		if c.sent == 1 {
			eventually(t, what, func() bool { return one.called("/v1/release") == 2 })
		}
		expect.Equal(t, one.called("/v1/release"), 1+c.sent, what)
		eventually(t, what, func() bool { return b.late.of(r.Owner) == nil })
	}
}

// An attempt may arrive for its TTL and a time, counted from the last one.
func TestLateAttemptsAreKeptFromTheLastOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, s := lateAttempts{at: map[string]arrivals{}}, &endpoint{}
		h := driver.Hold{Owner: "a", TTL: time.Minute}
		for range 3 {
			l.note(h, tried{{s, errors.New("no answer")}})
			time.Sleep(h.TTL)
		}
		time.Sleep(lateTime - time.Millisecond)
		if l.of("a") == nil {
			t.Error("the last attempt is forgotten")
		}
		time.Sleep(2 * time.Millisecond)
		if l.of("a") != nil {
			t.Error("it is never forgotten")
		}
	})
}

// Close ends what is under way, whose outcome is unknown.
func TestClose(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	b := openAll(t, f)
	f.answer("/v1/acquire", silent)
	go func() {
		eventually(t, "a call", func() bool { return f.called("/v1/acquire") == 1 })
		b.Close()
	}()
	_, err := b.Acquire(soon(t), requestFor("job"))
	noFact(t, "a call during Close", err)
	for call, err := range calls(soon(t), b, requestFor("job")) {
		if !errors.Is(err, driver.ErrClosed) {
			t.Errorf("%s after Close: %v", call, err)
		}
	}
}

// Names that are too long, and those that JSON would change, are not sent.
func TestNames(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	b := openAll(t, f)
	for _, name := range []string{"", "a\xff", strings.Repeat("long", httpwire.MaxName)} {
		for call, err := range calls(soon(t), b, requestFor(name)) {
			if call != "List" && (!errors.Is(err, driver.ErrInvalid) || len(err.Error()) > 500) {
				t.Errorf("%s of %.20q: %.500v", call, name, err)
			}
		}
	}
	r := requestFor("job")
	r.Meta = map[string]string{"note": strings.Repeat("x", httpwire.MaxMeta)}
	expect.Be(t, expect.Err(b.Acquire(soon(t), r)), driver.ErrInvalid, "with too much meta")
	expect.Equal(t, f.called("/v1/acquire"), 0, "were sent")
}

// The cause of a caller's context is no answer of a server: it may be the refusal of another lock.
func TestCausesAreNoFacts(t *testing.T) {
	t.Parallel()
	for _, cause := range []error{&driver.HeldError{}, driver.ErrLost, driver.ErrInvalid, driver.ErrUnsupported, driver.ErrClosed} {
		f := newFake(t)
		b := openAll(t, f)
		until := func(path string) context.Context {
			ctx, cancel := context.WithCancelCause(t.Context())
			called := untilCalled(t, f, path, 1)
			go func() {
				<-called.Done()
				cancel(cause)
			}()
			return ctx
		}
		f.answer("/v1/acquire", silent)
		_, err := b.Acquire(until("/v1/acquire"), requestFor("x"))
		noFact(t, "an acquire without an answer", err)
		f.answer("/v1/renew", func(w http.ResponseWriter, r *http.Request) {
			f.mark(w)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		})
		noFact(t, "a renewal without a line", b.Renew(until("/v1/renew"), holds(1))[0])
		f.answer("/v1/release", func(w http.ResponseWriter, r *http.Request) {
			f.mark(w)
			w.Header().Set("Content-Type", httpwire.ProblemType)
			w.WriteHeader(http.StatusTeapot)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		})
		noFact(t, "a problem without a text", b.Release(until("/v1/release"), requestFor("x").Hold))
	}
}

// A refusal says that the attempt has released its Owner.
func TestRefusalOfAReleasedOwner(t *testing.T) {
	t.Parallel()
	f, next := newFake(t), newFake(t)
	b := openAll(t, f, next)
	for _, kind := range []httpwire.Kind{httpwire.Held, httpwire.Unsent} {
		f.answer("/v1/acquire", func(w http.ResponseWriter, _ *http.Request) {
			f.mark(w)
			w.Header().Set("Content-Type", httpwire.ProblemType)
			w.WriteHeader(http.StatusTeapot)
			json.NewEncoder(w).Encode(httpwire.Problem{Kind: kind, Spent: true, Detail: "no"})
		})
		_, err := b.Acquire(t.Context(), requestFor("x"))
		held := (*driver.HeldError)(nil)
		if !errors.Is(err, driver.ErrSpent) || errors.As(err, &held) != (kind == httpwire.Held) {
			t.Errorf("%s: %v", kind, err)
		}
	}
	if n := next.called("/v1/acquire"); n != 0 {
		t.Errorf("the next server was asked %d times for a released Owner", n)
	}
	if _, err := b.Acquire(t.Context(), requestFor("x")); err != nil || next.called("/v1/acquire") != 1 {
		t.Errorf("a fresh Owner at the next server: %v", err)
	}
}
