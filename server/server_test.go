package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// rig is a server on a memory backend.
type rig struct {
	*testing.T
	s    *Server
	http *httptest.Server
	log  *bytes.Buffer // valid once the server is closed
}

func start(t *testing.T, b driver.Backend, o Options) *rig {
	t.Helper()
	log := &bytes.Buffer{}
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	s := must.Get(New(b, o))(t)
	r := &rig{t, s, httptest.NewServer(s), log}
	t.Cleanup(func() { s.drain(); r.http.Close() })
	return r
}

// request makes a request, and returns the answer with its body.
func (r *rig) request(method, path, body string, header ...string) (*http.Response, string) {
	r.Helper()
	req := must.Get(http.NewRequestWithContext(r.Context(), method, r.http.URL+path, strings.NewReader(body)))(r)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp := must.Get(r.http.Client().Do(req))(r)
	defer resp.Body.Close()
	text := must.Get(io.ReadAll(resp.Body))(r)
	return resp, string(text)
}

// wants makes a request and checks its status, and that its body contains says.
func (r *rig) wants(status int, says, method, path, body string, header ...string) string {
	r.Helper()
	resp, text := r.request(method, path, body, header...)
	if resp.StatusCode != status || !strings.Contains(text, says) {
		r.Errorf("%s %s %s: %d %s; want %d and %q", method, path, body, resp.StatusCode, text, status, says)
	}
	if resp.StatusCode >= 400 && !strings.Contains(text, `"distlock":"`) {
		r.Errorf("%s %s: the error has no kind: %s", method, path, text)
	}
	return text
}

const (
	ownerA = "00000000-0000-4000-8000-00000000000a"
	ownerB = "00000000-0000-4000-8000-00000000000b"
	secret = "000102030405060708090a0b0c0d0e0f"
)

func hold(name, owner string) string {
	return fmt.Sprintf(`{"name":%q,"owner":%q,"ttl_ms":30000}`, name, owner)
}

func TestCalls(t *testing.T) {
	t.Parallel()
	r := start(t, memlock.New(), Options{Version: "v9"})
	r.wants(200, `"version":"v9"`, "GET", "/v1", "")
	var g httpwire.Grant
	if err := json.Unmarshal([]byte(r.wants(200, `"ttl_ms":30000`, "POST", "/v1/acquire", hold("x", ownerA))), &g); err != nil || g.Fence == 0 || g.Fences != 1 {
		t.Errorf("grant %+v: %v", g, err)
	}
	r.wants(423, `"distlock":"held"`, "POST", "/v1/acquire", hold("x", ownerB))
	r.wants(200, `{"names":["x"]}`, "GET", "/v1/locks", "")
	r.wants(200, `"names":[]`, "GET", "/v1/locks?prefix=y", "")
	r.wants(200, fmt.Sprintf(`"fence":"%d"`, g.Fence), "GET", "/v1/locks/x", "")
	r.wants(200, `{"index":0,"outcome":"ok"}`+"\n"+`{"index":1,"outcome":"lost"`, "POST", "/v1/renew",
		fmt.Sprintf(`{"holds":[%s,%s]}`, hold("x", ownerA), hold("x", ownerB)))
	r.wants(200, "distlock_server_holds 1\n", "GET", "/metrics", "")
	r.wants(410, `"distlock":"lost"`, "POST", "/v1/release", hold("x", ownerB))
	r.wants(204, "", "POST", "/v1/release", hold("x", ownerA))
	r.wants(200, `"holders":[]`, "GET", "/v1/locks/x", "")
	r.wants(200, "distlock_server_holds 0\n", "GET", "/metrics", "")
	r.wants(200, "ok", "GET", "/healthz", "")
	r.wants(200, "ok", "GET", "/readyz", "")
	r.wants(200, `distlock_server_backend_duration_seconds_count{call="acquire",outcome="held"} 1`, "GET", "/metrics", "")
	if resp, _ := r.request("GET", "/v1/locks/x", ""); resp.Header.Get(httpwire.BackendHeader) == "" {
		t.Error("the answer is not marked as a server's")
	}
}

// The calls for shells need no body.
func TestSimpleCalls(t *testing.T) {
	t.Parallel()
	r := start(t, memlock.New(), Options{})
	resp, text := r.request("POST", "/v1/locks/a%2Fb%2E%2E?ttl=10s&wait=1s", "")
	owner := resp.Header.Get(httpwire.OwnerHeader)
	if resp.StatusCode != 200 || owner == "" || !strings.Contains(text, `"fence":"`+resp.Header.Get(httpwire.FenceHeader)+`"`) || !strings.Contains(text, `"ttl_ms":10000`) {
		t.Fatalf("%v %v", resp, text)
	}
	r.wants(200, `"name":"a/b.."`, "GET", "/v1/locks/a%2Fb%2E%2E", "")
	r.wants(423, "held", "POST", "/v1/locks/a%2Fb%2E%2E", "")
	r.wants(204, "", "PUT", "/v1/locks/a%2Fb%2E%2E?ttl=1m", "", httpwire.OwnerHeader, owner)
	r.wants(410, "lost", "PUT", "/v1/locks/a%2Fb%2E%2E", "", httpwire.OwnerHeader, ownerA)
	r.wants(204, "", "DELETE", "/v1/locks/a%2Fb%2E%2E", "", httpwire.OwnerHeader, owner)
	r.wants(410, "lost", "DELETE", "/v1/locks/a%2Fb%2E%2E", "", httpwire.OwnerHeader, owner)
	r.wants(200, ownerA, "POST", "/v1/locks/s?mode=counted&limit=2", "", httpwire.OwnerHeader, ownerA)
	r.wants(200, ownerB, "POST", "/v1/locks/s?mode=counted&limit=2", "", httpwire.OwnerHeader, ownerB)
	r.wants(423, "held", "POST", "/v1/locks/s?mode=counted&limit=2", "")
	r.wants(200, `"waiter_count":0`, "GET", "/v1/locks/s", "") // the place of one that gave up is gone
}

// The name "/" is a name as any other, in all calls, and NUL alone is not another way to write it.
func TestSlashIsAName(t *testing.T) {
	t.Parallel()
	r := start(t, memlock.New(), Options{})
	r.wants(200, ownerA, "POST", "/v1/locks/%2F", "", httpwire.OwnerHeader, ownerA)
	r.wants(200, `"names":["/"]`, "GET", "/v1/locks", "")
	r.wants(200, `"name":"/"`, "GET", "/v1/locks/%2f", "")
	r.wants(204, "", "POST", "/v1/locks/%2F/break", `{"owner":"`+ownerA+`"}`)
	r.wants(200, `"holders":[]`, "GET", "/v1/locks/%2F", "")
	r.wants(404, "one of dots or NUL", "GET", "/v1/locks/%00", "")
}

func TestWrongInput(t *testing.T) {
	t.Parallel()
	r := start(t, memlock.New(), Options{})
	long := strings.Repeat("x", httpwire.MaxName+1)
	for _, c := range [][4]string{
		{"POST", "/v1/acquire", `{`, "not as described in /v1/openapi.json"},
		{"POST", "/v1/acquire", `{"name":"x","ttl":5}`, `unknown field \"ttl\"`},
		{"POST", "/v1/acquire", `{"name":"x","owner":"` + ownerA + `","ttl_ms":1000,"name":"y"}`, `the key \"name\" is there twice`},
		{"POST", "/v1/acquire", `{"name":"x","owner":"` + ownerA + `","ttl_ms":1000,"na\u006de":"y"}`, `the key \"name\" is there twice`},
		{"POST", "/v1/acquire", `{"name":"x","owner":"` + ownerA + `","ttl_ms":1000,"NAME":"y"}`, `unknown field \"NAME\"`},
		{"POST", "/v1/acquire", `{"name":"x","owner":"` + ownerA + `","ttl_ms":1000,"meta":{"a":"1","\"b\\":"{","a":"2"}}`, `the key \"a\" is there twice`},
		{"POST", "/v1/renew", `{"holds":[` + hold("x", ownerA) + `,{"name":"x","owner":"` + ownerA + `","ttl_ms":1000,"owner":"y"}]}`, `the key \"owner\" is there twice`},
		{"POST", "/v1/acquire", `{"name":"x","owner":"` + ownerA + `","ttl_ms":1e400}`, "not as described"},
		{"POST", "/v1/acquire", `{"name":` + strings.Repeat("[", 30_000), "not as described"},
		{"POST", "/v1/acquire", `{"name":"a\ud800","owner":"` + ownerA + `","ttl_ms":1000}`, "half of a surrogate pair"},
		{"POST", "/v1/acquire", `{"name":"x","owner":"` + ownerA + `","ttl_ms":1000,"meta":{"a":"\udc00\ud800"}}`, "half of a surrogate pair"},
		{"POST", "/v1/acquire", `[]`, "not as described"},
		{"POST", "/v1/acquire", ``, "it is empty"},
		{"POST", "/v1/acquire", `{"name":"x","owner":"` + ownerA + `","ttl_ms":"30s"}`, "ttl_ms can't be a string"},
		{"PUT", "/v1/locks/x?ttl=1s", ``, "there is no owner: send the one that the acquire answered, in the header Distlock-Owner"},
		{"DELETE", "/v1/locks/x", ``, "there is no owner"},
		{"POST", "/v1/locks/x?limit=2", ``, "with mode=counted, and not with other modes"},
		{"POST", "/v1/locks/x?mode=counted", ``, "want limit, the number of permits, with mode=counted"},
		{"POST", "/v1/acquire", `null`, "a lock needs a name"},
		{"POST", "/v1/acquire", hold("x", ownerA) + "{}", "text after the JSON object"},
		{"POST", "/v1/acquire", "{\"name\":\"\xff\"}", "not UTF-8"},
		{"POST", "/v1/acquire", hold("", ownerA), "a lock needs a name"},
		{"POST", "/v1/acquire", hold(long, ownerA), "the name has 2049 bytes: at most 2048"},
		{"POST", "/v1/acquire", `{"name":"a\u0000b","owner":"` + ownerA + `","ttl_ms":1000}`, "NUL"},
		{"POST", "/v1/acquire", hold("x", "me"), "the owner is not a UUID"},
		{"POST", "/v1/acquire", `{"name":"x","owner":"` + ownerA + `"}`, "ttl_ms is 0: want 1 to "},
		{"POST", "/v1/acquire", `{"name":"x","owner":"` + ownerA + `","ttl_ms":9223372036854775807}`, "want 1 to "},
		{"POST", "/v1/acquire", `{"name":"x","owner":"` + ownerA + `","ttl_ms":5000,"mode":"mine"}`, "want one of: exclusive"},
		{"POST", "/v1/acquire", `{"name":"x","owner":"` + ownerA + `","ttl_ms":5000,"mode":"counted"}`, "0 permits: want at least 1"},
		{"POST", "/v1/acquire", `{"name":"x","owner":"` + ownerA + `","ttl_ms":5000,"wait_ms":60001}`, "wait_ms is 60001: want 0 to 60000"},
		{"POST", "/v1/acquire", `{"name":"x","owner":"` + ownerA + `","ttl_ms":5000,"revocable":true}`, "revocable needs the header"},
		{"POST", "/v1/acquire", `{"name":"x","owner":"` + ownerA + `","ttl_ms":5000,"meta":{"a":"` + strings.Repeat("x", httpwire.MaxMeta) + `"}}`, "meta has 4097 bytes"},
		{"POST", "/v1/renew", `{"holds":[]}`, "0 holds: want 1 to 1000"},
		{"GET", "/v1/locks?max=3", "", "want each at most once of: prefix, after, limit"},
		{"GET", "/v1/locks?limit=0", "", "want 1 to 10000"},
		{"GET", "/v1/news", "", "is not a secret"},
		{"POST", "/v1/locks/x?ttl=30", "", "want one such as 30s"},
		{"POST", "/v1/locks/x?wait=2m", "", "at most 1m0s"},
		{"POST", "/v1/locks/x?mode=mine", "", "want exclusive, write, read or counted"},
		{"POST", "/v1/locks/x/break", "{}", "want the fence of the hold"},
	} {
		r.wants(400, c[3], c[0], c[1], c[2])
	}
	r.wants(413, "more than 65536 bytes", "POST", "/v1/acquire", strings.Repeat(" ", httpwire.MaxBody+1))
	r.wants(421, "the server's backend is mem", "POST", "/v1/acquire", hold("x", ownerA), httpwire.BackendHeader, "redis:%2F%2Fa")
	r.wants(200, `{"names":[]}`, "GET", "/v1/locks", "") // nothing was taken
}

// background makes a request whose answer is awaited later.
func (r *rig) background(method, path, body string, header ...string) (answer func(status int, says string)) {
	done := make(chan struct{})
	var resp *http.Response
	var text string
	go func() {
		defer close(done)
		resp, text = r.request(method, path, body, header...)
	}()
	return func(status int, says string) {
		r.Helper()
		<-done
		if resp.StatusCode != status || !strings.Contains(text, says) {
			r.Errorf("%s %s %s: %d %s; want %d and %q", method, path, body, resp.StatusCode, text, status, says)
		}
	}
}

// await returns once so many wait for a lock.
func (r *rig) await(name string, waiters int) {
	r.Helper()
	for {
		info := must.Get(r.s.inspection.Inspect(r.Context(), name))(r)
		if info.WaiterCount == waiters {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func waiting(name, owner string, ms int) string {
	return fmt.Sprintf(`{"name":%q,"owner":%q,"ttl_ms":30000,"wait_ms":%d}`, name, owner, ms)
}

func TestLongPoll(t *testing.T) {
	t.Parallel()
	r := start(t, memlock.New(), Options{})
	r.wants(200, "", "POST", "/v1/acquire", hold("x", ownerA))
	r.wants(423, "held", "POST", "/v1/acquire", waiting("x", ownerB, 20))
	answer := r.background("POST", "/v1/acquire", waiting("x", ownerB, 60_000))
	r.await("x", 1)
	r.wants(204, "", "POST", "/v1/release", hold("x", ownerA))
	answer(200, `"fence":"`)
	r.wants(204, "", "POST", "/v1/release", hold("x", ownerB))
}

// A client whose wait was cut off can release the hold that it may have got.
func TestReleaseEndsTheWaitOfItsOwner(t *testing.T) {
	t.Parallel()
	r := start(t, memlock.New(), Options{})
	r.wants(200, "", "POST", "/v1/acquire", hold("x", ownerA))
	answer := r.background("POST", "/v1/acquire", waiting("x", ownerB, 60_000))
	r.await("x", 1)
	r.wants(204, "", "POST", "/v1/release", hold("x", ownerB))
	answer(503, errYielded.Error())
	r.await("x", 0)
}

func TestDrain(t *testing.T) {
	t.Parallel()
	r := start(t, memlock.New(), Options{})
	r.wants(200, "", "POST", "/v1/acquire", hold("x", ownerA))
	answer := r.background("POST", "/v1/acquire", waiting("x", ownerB, 60_000))
	watched, _ := r.stream("POST", "/v1/watch", hold("x", ownerB))
	watched(httpwire.EventArmed)
	news, _ := r.stream("GET", "/v1/news", "", httpwire.ClientHeader, secret)
	news(httpwire.EventHello)
	for r.s.quota.count("") != 3 { // a waiter has a place in the queue before it counts
		time.Sleep(time.Millisecond)
	}
	expect.OK(t, r.s.Drain(t.Context())) // once they have ended
	answer(503, `"distlock":"unsent"`)
	r.wants(503, `"distlock":"unsent"`, "POST", "/v1/acquire", hold("y", ownerB))
	if resp, _ := r.request("GET", "/readyz", ""); resp.StatusCode != 503 {
		t.Errorf("ready while it drains: %d", resp.StatusCode)
	}
	r.wants(200, `"outcome":"ok"`, "POST", "/v1/renew", `{"holds":[`+hold("x", ownerA)+`]}`)
	r.wants(204, "", "POST", "/v1/release", hold("x", ownerA))
}

// stream reads the events of a request.
func (r *rig) stream(method, path, body string, header ...string) (next func(event string) string, end context.CancelFunc) {
	r.Helper()
	ctx, end := context.WithCancel(r.Context())
	req := must.Get(http.NewRequestWithContext(ctx, method, r.http.URL+path, strings.NewReader(body)))(r)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp := must.Get(r.http.Client().Do(req))(r)
	r.Cleanup(func() { end(); resp.Body.Close() })
	lines := bufio.NewScanner(resp.Body)
	return func(event string) string {
		r.Helper()
		more := lines.Scan()
		for ; more && (lines.Text() == "" || strings.HasPrefix(lines.Text(), ":")); more = lines.Scan() {
		} // a ping
		if !more || lines.Text() != "event: "+event {
			r.Fatalf("got %q, want event %s", lines.Text(), event)
		}
		lines.Scan()
		data := strings.TrimPrefix(lines.Text(), "data: ")
		lines.Scan()
		return data
	}, end
}

func TestWatch(t *testing.T) {
	t.Parallel()
	r := start(t, memlock.New(), Options{})
	r.wants(200, "", "POST", "/v1/acquire", hold("x", ownerA))
	next, _ := r.stream("POST", "/v1/watch", hold("x", ownerB))
	next(httpwire.EventArmed)
	r.wants(204, "", "POST", "/v1/release", hold("x", ownerA))
	next(httpwire.EventReady)
}

// A client gets the news of its own holds, also those from before it listened.
func TestNews(t *testing.T) {
	t.Parallel()
	r := start(t, memlock.New(), Options{})
	revocable := strings.Replace(hold("x", ownerA), "}", `,"revocable":true}`, 1)
	text := r.wants(200, "", "POST", "/v1/acquire", revocable, httpwire.ClientHeader, secret)
	var g httpwire.Grant
	must.OK(t, json.Unmarshal([]byte(text), &g))
	r.wants(410, "no holder has this fence", "POST", "/v1/locks/x/ask", `{"fence":"99999"}`)
	r.wants(204, "", "POST", "/v1/locks/x/ask", fmt.Sprintf(`{"fence":"%d"}`, g.Fence))
	next, _ := r.stream("GET", "/v1/news", "", httpwire.ClientHeader, secret)
	next(httpwire.EventHello)
	expect.Equal(t, next(httpwire.EventAsked), `{"name":"x","owner":"`+ownerA+`"}`, "asked")
	r.wants(204, "", "POST", "/v1/locks/x/break", fmt.Sprintf(`{"fence":"%d"}`, g.Fence))
	r.wants(410, "", "POST", "/v1/release", hold("x", ownerA))
}

func TestRights(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tokens")
	write := func(text string) {
		t.Helper()
		must.OK(t, os.WriteFile(path, []byte(text), 0o600))
	}
	token := func(s string) string { return "sha256:" + HashToken(s) }
	write("# name token rights prefix\nci " + token("c") + " lock,see ci/\noncall " + token("o") + " see,ask,break *\n")
	complaints := make(chan error, 10)
	access := must.Get(OpenAccess(path, func(err error) { complaints <- err }))(t)
	r := start(t, memlock.New(), Options{Access: access})
	as := func(token string) []string { return []string{"Authorization", "Bearer " + token} }
	r.wants(401, "wants a token", "GET", "/v1", "")
	r.wants(401, "doesn't know this token", "GET", "/v1", "", as("x")...)
	r.wants(401, "wants a token", "GET", "/metrics", "")
	r.wants(200, "", "POST", "/v1/acquire", hold("ci/x", ownerA), as("c")...)
	r.wants(403, "ci has not the right to lock this lock", "POST", "/v1/acquire", hold("x", ownerA), as("c")...)
	r.wants(403, "oncall has not the right to lock", "POST", "/v1/acquire", hold("x", ownerA), as("o")...)
	r.wants(403, "the right to lock", "POST", "/v1/watch", hold("x", ownerA), as("c")...)
	r.wants(200, `"outcome":"denied"`, "POST", "/v1/renew", `{"holds":[`+hold("x", ownerA)+`]}`, as("c")...)
	r.wants(403, "the right to ask", "POST", "/v1/locks/ci%2Fx/ask", `{"fence":"1"}`, as("c")...)
	r.wants(403, "the right to break", "POST", "/v1/locks/ci%2Fx/break", `{"fence":"1"}`, as("c")...)
	r.wants(403, "the right to see", "GET", "/v1/locks/x", "", as("c")...)
	r.wants(403, "the right to see", "GET", "/v1/locks?prefix=cd", "", as("c")...)
	r.wants(200, `{"names":["ci/x"]}`, "GET", "/v1/locks", "", as("c")...)
	if text := r.wants(200, "", "GET", "/v1/locks/ci%2Fx", "", as("c")...); strings.Contains(text, ownerA) {
		t.Errorf("one without the right to break sees the owner: %s", text)
	}
	r.wants(200, ownerA, "GET", "/v1/locks/ci%2Fx", "", as("o")...)
	far := fmt.Sprint(uint64(time.Now().AddDate(0, 0, 2).UnixMicro()) << 10)
	r.wants(200, "in a day", "POST", "/v1/renew", `{"holds":[`+strings.Replace(hold("ci/x", ownerA), "{", `{"floor":"`+far+`",`, 1)+`]}`, as("c")...)
	r.wants(204, "", "POST", "/v1/release", hold("ci/x", ownerA), as("o")...)

	access.checked = time.Time{}
	write("ci wrong lock ci/\n")
	r.wants(200, "", "GET", "/v1", "", as("c")...)
	if err := <-complaints; !strings.Contains(err.Error(), "line 1: the second field") {
		t.Error(err)
	}
	access.checked = time.Time{}
	write("ci " + token("new") + " lock ci/\n")
	r.wants(401, "", "GET", "/v1", "", as("c")...)
	r.wants(200, "", "GET", "/v1", "", as("new")...)

	// Another file, of the same size and time.
	old := must.Get(os.Stat(path))(t)
	path += ".new"
	write("ci " + token("newer") + " lock ci/\n")
	must.OK(t, errors.Join(os.Chtimes(path, old.ModTime(), old.ModTime()), os.Rename(path, strings.TrimSuffix(path, ".new"))))
	access.checked = time.Time{}
	r.wants(401, "", "GET", "/v1", "", as("new")...)
	r.wants(200, "", "GET", "/v1", "", as("newer")...)
}

func TestLimits(t *testing.T) {
	t.Parallel()
	r := start(t, memlock.New(), Options{MaxHolds: 1, MaxStreams: 1})
	r.wants(200, "", "POST", "/v1/acquire", hold("x", ownerA))
	r.wants(200, "", "POST", "/v1/acquire", hold("x", ownerA))
	r.wants(429, "1 holds: that is the limit for an anonymous client", "POST", "/v1/acquire", hold("y", ownerB))
	r.wants(204, "", "POST", "/v1/release", hold("x", ownerA))
	r.wants(200, "", "POST", "/v1/acquire", hold("y", ownerB))
	next, _ := r.stream("POST", "/v1/watch", hold("y", ownerA))
	next(httpwire.EventArmed)
	r.wants(429, "1 open requests that wait: that is the limit", "POST", "/v1/watch", hold("y", ownerA))
}

// attached is a backend whose holds end with its connection.
type attached struct{ *memlock.Backend }

func (b attached) Caps() driver.Caps {
	c := b.Backend.Caps()
	c.Name, c.Detached = "zk://h1", false
	return c
}

// watched is a backend whose holds end for those who watch them.
type watched struct{ driver.Backend }

func (b watched) Caps() driver.Caps {
	c := b.Backend.Caps()
	c.Name, c.Observed = "s3://bucket", true
	return c
}

// A minimum hold is refused where the end of a hold is seen by nobody.
func TestMinHoldOfAHoldThatIsWatched(t *testing.T) {
	t.Parallel()
	keeps := strings.Replace(hold("x", ownerA), "{", `{"min_hold_ms":5000,`, 1)
	start(t, memlock.New(), Options{}).wants(200, "", "POST", "/v1/acquire", keeps)
	r := start(t, watched{memlock.New()}, Options{})
	r.wants(501, "holds in s3://bucket end for those who have watched them", "POST", "/v1/acquire", keeps)
	r.wants(200, "", "POST", "/v1/acquire", hold("x", ownerA))
}

// A server does not begin if it could not keep its promises.
func TestBackendThatCantBeServed(t *testing.T) {
	t.Parallel()
	if _, err := New(attached{memlock.New()}, Options{}); !errors.Is(err, driver.ErrUnsupported) || !strings.Contains(err.Error(), "zk://h1 can't be served") {
		t.Error(err)
	}
}

// A page of a stranger can't reach a server by a name of its own. It has no address of the server as its name.
func TestHosts(t *testing.T) {
	t.Parallel()
	s := serverOf(t, Options{Hosts: []string{"lock.example"}})
	for host, want := range map[string]int{
		"lock.example": 200, "LOCK.example:80": 200, "127.0.0.1:7077": 200, "10.0.0.7": 200, "[::1]:7077": 200, "[fe80::1]": 200,
		"evil.example:80": 421, "lock.example.evil.example": 421, "localhost": 421, "127.0.0.1.evil.example": 421, "": 421,
	} {
		r := httptest.NewRequestWithContext(t.Context(), "GET", "/v1", nil)
		r.Host = host
		w := httptest.NewRecorder()
		if s.ServeHTTP(w, r); w.Code != want || want == 421 && !strings.Contains(w.Body.String(), "--host") {
			t.Errorf("%q: %d %s", host, w.Code, w.Body)
		}
	}
}

// No client can lift the fences of a name so far that they are used up.
func TestFloorIsBounded(t *testing.T) {
	t.Parallel()
	r := start(t, memlock.New(), Options{})
	r.wants(200, "", "POST", "/v1/acquire", hold("x", ownerA))
	for _, floor := range []string{"9223372036854775807", "9223372032559808511", "18446744073709551615"} {
		renewal := strings.Replace(hold("x", ownerA), "{", `{"floor":"`+floor+`",`, 1)
		r.wants(200, `"outcome":"invalid"`, "POST", "/v1/renew", `{"holds":[`+renewal+`]}`)
	}
	next := fmt.Sprint(uint64(time.Now().AddDate(1, 0, 0).UnixMicro()) << 10)
	r.wants(200, `"outcome":"ok"`, "POST", "/v1/renew", `{"holds":[`+strings.Replace(hold("x", ownerA), "{", `{"floor":"`+next+`",`, 1)+`]}`)
	r.wants(204, "", "POST", "/v1/release", hold("x", ownerA))
	var g httpwire.Grant
	text := r.wants(200, `"fence"`, "POST", "/v1/acquire", hold("x", ownerB))
	if err := json.Unmarshal([]byte(text), &g); err != nil || fmt.Sprint(g.Fence) <= next {
		t.Errorf("the fence after %s: %s, %v", next, text, err)
	}
}

// News that could not be sent on one stream go to another one of the client, which is open already.
func TestNewsGoToAnotherStream(t *testing.T) {
	t.Parallel()
	var s subscribers
	client := clientKey{"ci", secret}
	m := s.enter(client)
	s.enter(client)
	s.post(client, httpwire.EventLost, driver.Hold{Name: "x", Owner: ownerA})
	<-m.added
	s.putBack(m, s.take(m))
	s.leave(m)
	select {
	case <-m.added:
	default:
		t.Error("the other stream is not notified")
	}
	if pending := s.take(m); len(pending) != 1 {
		t.Errorf("%+v", pending)
	}
}

// A page of another site can't use a browser that reaches the server.
func TestCrossOrigin(t *testing.T) {
	t.Parallel()
	r := start(t, memlock.New(), Options{})
	for _, header := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "http://evil.example"}} {
		r.wants(403, "a page of another site", "POST", "/v1/locks/x", "", header...)
		r.wants(403, "a page of another site", "POST", "/v1/acquire", hold("x", ownerA), append(header, "Content-Type", "text/plain")...)
	}
	r.wants(200, "", "POST", "/v1/locks/x", "", "Sec-Fetch-Site", "same-origin")
}

// The log has clients and names of locks, and neither owners nor secrets.
func TestLog(t *testing.T) {
	t.Parallel()
	r := start(t, memlock.New(), Options{})
	r.wants(200, "", "POST", "/v1/acquire", hold("x", ownerA), httpwire.ClientHeader, secret)
	r.wants(204, "", "DELETE", "/v1/locks/x", "", httpwire.OwnerHeader, ownerA)
	r.http.Close()
	text := r.log.String()
	if !strings.Contains(text, `call="POST /v1/acquire" lock=x`) || strings.Contains(text, ownerA) || strings.Contains(text, secret) {
		t.Errorf("log: %s", text)
	}
}

// count returns how many streams an identity has open.
func (q *quota) count(who string) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.streams[who]
}
