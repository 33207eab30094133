package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/internal/httpwire"
	"github.com/distlock/distlock/internal/testkit"
	"github.com/distlock/distlock/internal/testkit/must"
)

// raw sends bytes to the server, and returns the status of the answer; 0 if the connection ended without one.
func (r *rig) raw(text string) (status int, body string) {
	r.Helper()
	conn := must.Get(net.Dial("tcp", r.http.Listener.Addr().String()))(r)
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(2 * time.Minute))
	go io.WriteString(conn, text) // the server may answer before it has read all
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	all, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	return resp.StatusCode, string(all)
}

// Requests that no client makes are refused with a clear status. They leave no hold and no goroutine.
func TestAbuse(t *testing.T) {
	t.Parallel()
	r := start(t, memlock.New(), Options{Hosts: []string{"X", "127.0.0.1"}})
	post := func(path, more, body string) string {
		return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%sContent-Length: %d\r\n\r\n%s", path, more, len(body), body)
	}
	acquire := hold("x", ownerA)
	before := testkit.Goroutines()
	for what, c := range map[string]struct {
		status int
		says   string
		text   string
	}{
		"a body of 10 MB":         {413, "more than 65536 bytes", post("/v1/acquire", "", strings.Repeat(" ", 10<<20))},
		"a renewal of 10 MB":      {413, "more than", post("/v1/renew", "", strings.Repeat(" ", 10<<20))},
		"a name of 64 kB":         {400, "the name has 65000 bytes", post("/v1/acquire", "", hold(strings.Repeat("x", 65_000), ownerA))},
		"a path of 64 kB":         {400, "the name has 65000 bytes", post("/v1/locks/"+strings.Repeat("x", 65_000), "", "")},
		"10 000 headers":          {431, "", "GET /v1 HTTP/1.1\r\nHost: x\r\n" + strings.Repeat("X: "+strings.Repeat("y", 200)+"\r\n", 10_000) + "\r\n"},
		"dots in a path":          {404, "a name has %2F for /", "GET /v1/locks/../../etc/passwd HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"},
		"an empty segment":        {404, "a name has %2F for /", post("/v1/locks/a//b", "", "")},
		"a slash in a name":       {404, "a name has %2F for /", post("/v1/locks/a/b?ttl=1s", "", "")},
		"another method":          {405, "Method Not Allowed", "PATCH /v1/locks/a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"},
		"escaped dots":            {404, "", "GET /v1/locks/..%2f..%2fetc/passwd HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"},
		"an asset with dots":      {404, "", "GET /page/..%2fpage.go HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"},
		"NUL in a path":           {400, "contains NUL", post("/v1/locks/a%00b", "", "")},
		"invalid UTF-8 in a path": {400, "not UTF-8", post("/v1/locks/a%ff", "", "")},
		"a wrong escape":          {400, "", post("/v1/locks/a%zz", "", "")},
		"invalid UTF-8 in JSON":   {400, "not UTF-8", post("/v1/acquire", "", "{\"name\":\"\xff\"}")},
		"half a surrogate":        {400, "", post("/v1/acquire", "", `{"name":"\ud800","owner":"x","ttl_ms":1}`)},
		"two lengths":             {400, "", "POST /v1/acquire HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 90\r\n\r\n" + acquire},
		"no length that is known": {501, "", "POST /v1/acquire HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n" + acquire},
		"no host":                 {400, "", "GET /v1 HTTP/1.1\r\n\r\n"},
		"two hosts":               {400, "", "GET /v1 HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n"},
		"no HTTP":                 {400, "", "\x16\x03\x01\x02\x00\x01\x00\r\n\r\n"},
		"a method that is none":   {405, "", "BREW /v1/acquire HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"},
		"a length and chunks":     {400, "", "POST /v1/acquire HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + post("/v1/acquire", "", acquire)},
		"chunks twice":            {501, "", "POST /v1/acquire HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
		"a blank before a colon":  {400, "", "POST /v1/acquire HTTP/1.1\r\nHost: x\r\nContent-Length : 90\r\n\r\n" + acquire},
		"a long unknown field":    {400, "unknown field", post("/v1/acquire", "", `{"`+strings.Repeat("x", 60_000)+`":1}`)},
		"a line in a secret":      {400, "is not a secret", "GET /v1/news HTTP/1.1\r\nHost: x\r\nConnection: close\r\nDistlock-Client: " + secret + "\r\n evil: 1\r\n\r\n"},
		"an absolute form":        {421, "not known as", "GET http://evil.example/v1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"},
		"a stranger's host":       {421, "not known as", "GET /v1 HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n"},
		"HTTP/1.0":                {421, "not known as", "GET /v1 HTTP/1.0\r\n\r\n"},
		"HTTP/1.0 with a host":    {200, "mem:", "GET /v1 HTTP/1.0\r\nHost: X:80\r\n\r\n"},
		"a negative TTL":          {400, "ttl_ms is -1", post("/v1/acquire", "", `{"name":"x","owner":"`+ownerA+`","ttl_ms":-1}`)},
		"the longest wait":        {400, "wait_ms is 9223372036854775807", post("/v1/acquire", "", `{"name":"x","owner":"`+ownerA+`","ttl_ms":1000,"wait_ms":9223372036854775807}`)},
		"the longest duration":    {400, "ttl_ms is 9223372036854", post("/v1/locks/x?ttl=2562047h47m16.854775807s", "", "")},
		"a huge limit":            {400, "not as described", post("/v1/acquire", "", `{"name":"x","owner":"`+ownerA+`","ttl_ms":1000,"limit":99999999999999999999}`)},
		"an owner in upper case":  {400, "not a UUID", post("/v1/locks/x", "Distlock-Owner: "+strings.ToUpper(ownerA)+"\r\n", "")},
		"an owner to break":       {400, "not a UUID", post("/v1/locks/x/break", "", `{"owner":"../y","mode":"exclusive"}`)},
		"a prefix with NUL":       {400, "parameter prefix", "GET /v1/locks?prefix=a%00 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"},
		"a prefix not in UTF-8":   {400, "parameter prefix", "GET /v1/locks?prefix=%ff HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"},
		"a NUL in a header":       {400, "", "GET /v1 HTTP/1.1\r\nHost: x\r\nX: a\x00b\r\n\r\n"},
	} {
		status, body := r.raw(c.text)
		if status != c.status || !strings.Contains(body, c.says) {
			t.Errorf("%s: %d %.200q; want %d and %q", what, status, body, c.status, c.says)
		}
		if len(body) > 1000 {
			t.Errorf("%s: an answer of %d bytes", what, len(body))
		}
	}
	r.wants(200, `{"names":[]}`, "GET", "/v1/locks", "")
	r.http.Client().CloseIdleConnections()
	for deadline := time.Now().Add(time.Minute); testkit.Goroutines() > before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines; there were %d", testkit.Goroutines(), before)
		}
	}
}

// A client that sends its body slowly, or not at all, is given up, whatever it calls, and also if its body is not
// read because the call is refused.
func TestSlowBody(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tokens")
	must.OK(t, os.WriteFile(path, []byte("all sha256:"+HashToken("all")+" lock,see,ask,break *\n"), 0o600))
	access := must.Get(OpenAccess(path, nil))(t)
	r := start(t, memlock.New(), Options{Access: access})
	r.s.bodyTime = 10 * time.Millisecond
	for pattern, rule := range rightsTable() {
		for _, token := range []string{"all", "unknown"} {
			method, path, _ := strings.Cut(pattern, " ")
			if rule.path != "" {
				path = rule.path
			}
			if strings.HasPrefix(path, "/v1/news") || strings.HasPrefix(path, "/v1/events") {
				continue // streams
			}
			status, body := r.raw(fmt.Sprintf("%s %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 100\r\n\r\n{", method, path, token))
			if status == 0 || method == "POST" && status < 300 {
				t.Fatalf("%s: %d %.300s", pattern, status, body)
			}
		}
	}
	r.wants(200, `{"names":[]}`, "GET", "/v1/locks", "", "Authorization", "Bearer all")
}

// A request with a long poll waits for longer than its body may take.
func TestLongPollOutlivesItsBody(t *testing.T) {
	t.Parallel()
	r := start(t, memlock.New(), Options{})
	r.s.bodyTime = time.Millisecond
	r.wants(200, "", "POST", "/v1/acquire", hold("x", ownerA))
	answer := r.background("POST", "/v1/acquire", waiting("x", ownerB, 60_000))
	r.await("x", 1)
	time.Sleep(20 * time.Millisecond)
	r.wants(204, "", "POST", "/v1/release", hold("x", ownerA))
	answer(200, "")
	r.wants(400, "there is a body", "POST", "/v1/locks/y", "{}")
}

// Bodies and paths of any kind get an answer that is no 5xx, and an acquire that is answered with an error has taken
// nothing. One that is granted says so in a body that means the same to every reader of JSON: no key is there twice.
func FuzzCalls(f *testing.F) {
	for _, body := range []string{
		"", "{", "null", "[]", "{}", `{"name":"x"}`, hold("x", ownerA), waiting("x", ownerA, 0),
		`{"holds":[` + hold("x", ownerA) + `]}`, `{"fence":"1"}`, `{"fence":1}`,
		`{"name":"x","owner":"` + ownerA + `","ttl_ms":5000,"mode":"counted","limit":3,"meta":{"a":"b"},"fair":true}`,
		`{"name":"x","owner":"` + ownerA + `","ttl_ms":1e400}`, `{"name":"x","name":"y","owner":"` + ownerA + `","ttl_ms":5}`,
	} {
		for i := range fuzzed {
			f.Add(uint8(i), "x", "ttl=30s", []byte(body))
		}
	}
	f.Add(uint8(13), "x", "name=x", []byte("fence=1&confirm=x"))
	f.Add(uint8(15), "x", "name=%ff&name=y", []byte("fence=%zz"))
	f.Add(uint8(0), "x", "", []byte(`{"name":"x","owner":"`+ownerA+`","ttl_ms":5000,"meta":{"A":"1","a":"2","meta":"{"}}`))
	f.Add(uint8(6), "..%2f", "ttl=1e9s&wait=-1s", []byte(nil))
	s := must.Get(New(memlock.New(), Options{}))(f)
	f.Fuzz(func(t *testing.T, call uint8, name, query string, body []byte) {
		b := memlock.New()
		defer b.Close()
		s.backend, s.inspection.inspector, s.quota.holds = b, b, nil // to make a new server takes long
		method, path, _ := strings.Cut(fuzzed[int(call)%len(fuzzed)], " ")
		r := httptest.NewRequest(method, "http://localhost/", strings.NewReader(string(body)))
		r.URL.Path = strings.ReplaceAll(path, "{name}", name)
		r.URL.RawPath, r.URL.RawQuery = strings.ReplaceAll(path, "{name}", httpwire.SegmentOf(name)), query
		if method+" "+path == "POST /v1/watch" || path == "/v1/news" {
			ctx, cancel := context.WithCancel(t.Context())
			cancel() // the stream ends after its first event
			r = r.WithContext(ctx)
		}
		r.Header.Set(httpwire.ClientHeader, secret)
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if w.Code >= 500 && w.Code != http.StatusServiceUnavailable && w.Code != http.StatusNotImplemented {
			t.Errorf("%s %q: %d %s", method, r.URL, w.Code, w.Body)
		}
		if w.Code >= 400 && w.Body.Len() > 4000 {
			t.Errorf("%s %q: an error of %d bytes", method, r.URL, w.Body.Len())
		}
		var names []string
		must.OK(t, b.List(t.Context(), "", func(name string) bool { names = append(names, name); return true }))
		acquires := path == "/v1/acquire" || method+" "+path == "POST /v1/locks/{name}"
		if len(names) > 0 && (w.Code != 200 || !acquires) {
			t.Errorf("%s %q %q: %d, and %q are taken", method, r.URL, body, w.Code, names)
		}
		if w.Code < 300 && method == "POST" && strings.HasPrefix(path, "/v1/") && len(body) > 0 {
			if d := json.NewDecoder(bytes.NewReader(body)); !isStrict(d, false) || d.More() {
				t.Errorf("%s %q: %d for what other readers of JSON read in another way", path, body, w.Code)
			}
		}
		if n := s.quota.allStreams(); n != 0 {
			t.Errorf("%s %q %q: %d streams", method, r.URL, body, n)
		}
		if w.Code == 200 && path == "/v1/acquire" {
			var m struct{ Name string }
			if err := json.Unmarshal(body, &m); err != nil || !slices.Equal(names, []string{m.Name}) {
				t.Errorf("%q: %v, and %q are taken", body, err, names)
			}
		}
	})
}

// isStrict reports whether every object of a JSON value has each key once, and keys in lower case but in meta.
func isStrict(d *json.Decoder, free bool) bool {
	t, err := d.Token()
	switch t {
	case json.Delim('{'):
		for keys := map[any]bool{}; d.More(); {
			key, err := d.Token()
			if err != nil || keys[key] || !free && key != strings.ToLower(key.(string)) || !isStrict(d, key == "meta") {
				return false
			}
			keys[key] = true
		}
		_, err = d.Token()
	case json.Delim('['):
		for d.More() {
			if !isStrict(d, false) {
				return false
			}
		}
		_, err = d.Token()
	}
	return err == nil
}

// fuzzed are the calls that read what clients send.
var fuzzed = []string{
	"POST /v1/acquire", "POST /v1/renew", "POST /v1/release", "GET /v1/locks", "GET /v1/locks/{name}", "POST /v1/locks/{name}",
	"PUT /v1/locks/{name}", "DELETE /v1/locks/{name}", "POST /v1/locks/{name}/ask", "POST /v1/locks/{name}/break", "POST /login",
	"POST /v1/watch", "GET /v1/news", "GET /lock", "POST /lock/ask", "POST /lock/break", "GET /{name}", "BREW /{name}",
}
