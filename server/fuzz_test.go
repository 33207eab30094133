package server

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/internal/httpwire"
)

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
	s, err := New(memlock.New(), Options{})
	if err != nil {
		f.Fatal(err)
	}
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
		if err := b.List(t.Context(), "", func(name string) bool { names = append(names, name); return true }); err != nil {
			t.Fatal(err)
		}
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
