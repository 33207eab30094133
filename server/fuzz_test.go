package server

import (
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
	f.Add(uint8(6), "..%2f", "ttl=1e9s&wait=-1s", []byte(nil))
	s, err := New(memlock.New(), Options{})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, call uint8, name, query string, body []byte) {
		b := memlock.New()
		defer b.Close()
		s.backend, s.quota.holds = b, nil // to make a new server takes long
		method, path, _ := strings.Cut(fuzzed[int(call)%len(fuzzed)], " ")
		r := httptest.NewRequest(method, "http://localhost/", strings.NewReader(string(body)))
		r.URL.Path = strings.ReplaceAll(path, "{name}", name)
		r.URL.RawPath, r.URL.RawQuery = strings.ReplaceAll(path, "{name}", httpwire.SegmentOf(name)), query
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
		if len(names) > 0 && w.Code != 200 {
			t.Errorf("%s %q %q: %d, and %q are taken", method, r.URL, body, w.Code, names)
		}
		if w.Code == 200 && path == "/v1/acquire" {
			var m struct{ Name string }
			if err := json.Unmarshal(body, &m); err != nil || !slices.Equal(names, []string{m.Name}) {
				t.Errorf("%q: %v, and %q are taken", body, err, names)
			}
		}
	})
}

// fuzzed are the calls that read what clients send.
var fuzzed = []string{
	"POST /v1/acquire", "POST /v1/renew", "POST /v1/release", "GET /v1/locks", "GET /v1/locks/{name}", "POST /v1/locks/{name}",
	"PUT /v1/locks/{name}", "DELETE /v1/locks/{name}", "POST /v1/locks/{name}/ask", "POST /v1/locks/{name}/break", "POST /login",
}
