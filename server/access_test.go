package server

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
	"github.com/distlock/distlock/internal/testkit/must"
)

// permission says which clients may make a call.
type permission int

const (
	everybody permission = iota
	known                // every identity
	someView             // those with the right to see some name
	someRight            // those with a right for the name
)

// callRule says who may make a call for the lock "a/x".
type callRule struct {
	permission
	rights Right                                       // each of them is enough
	path   string                                      // for the lock; "": the pattern's
	body   func(fence uint64) string                   // nil: none
	denied func(resp *http.Response, text string) bool // nil: 403
}

// rightsTable is who may call what. A call that is not in it fails the test.
func rightsTable() map[string]callRule {
	body := func(text string) func(uint64) string { return func(uint64) string { return text } }
	held, fresh := hold("a/x", ownerA), hold("a/new", ownerB)
	fence := func(f uint64) string { return fmt.Sprintf(`{"fence":"%d"}`, f) }
	form := func(f uint64) string { return fmt.Sprintf("fence=%d&confirm=a/x", f) }
	deniedInside := func(resp *http.Response, text string) bool { return strings.Contains(text, `"outcome":"denied"`) }
	return map[string]callRule{
		"GET /healthz":         {},
		"GET /readyz":          {},
		"GET /v1/openapi.json": {},
		"GET /login":           {},
		"POST /login":          {body: body("token=all")},
		"POST /logout":         {},
		"GET /page/{asset}":    {path: "/page/page.js"},

		"GET /v1":       {permission: known},
		"GET /metrics":  {permission: known},
		"GET /v1/news":  {permission: known},
		"GET /v1/calls": {permission: known},
		"GET /{$}":      {permission: someView, path: "/"},
		"GET /hot":      {permission: someView},
		"GET /losses":   {permission: someView},
		"GET /backend":  {permission: someView},

		"POST /v1/acquire":            {someRight, Lock, "", body(fresh), nil},
		"POST /v1/watch":              {someRight, Lock, "", body(fresh), nil},
		"POST /v1/renew":              {someRight, Lock, "", body(`{"holds":[` + held + `]}`), deniedInside},
		"POST /v1/release":            {someRight, Lock | Break, "", body(hold("a/x", ownerB)), nil},
		"GET /v1/locks":               {permission: someView},
		"GET /v1/locks/{name}":        {someRight, See, "/v1/locks/a%2Fx", nil, nil},
		"POST /v1/locks/{name}":       {someRight, Lock, "/v1/locks/a%2Fnew", nil, nil},
		"PUT /v1/locks/{name}":        {someRight, Lock, "/v1/locks/a%2Fx", nil, nil},
		"DELETE /v1/locks/{name}":     {someRight, Lock | Break, "/v1/locks/a%2Fx", nil, nil},
		"POST /v1/locks/{name}/ask":   {someRight, Ask, "/v1/locks/a%2Fx/ask", fence, nil},
		"POST /v1/locks/{name}/break": {someRight, Break, "/v1/locks/a%2Fx/break", fence, nil},
		"GET /v1/events":              {someRight, See, "/v1/events?page=lock&name=a/x", nil, nil},
		"GET /lock":                   {someRight, See, "/lock?name=a/x", nil, nil},
		"POST /lock/ask":              {someRight, Ask, "/lock/ask?name=a/x", form, nil},
		"POST /lock/break":            {someRight, Break, "/lock/break?name=a/x", form, nil},
	}
}

// Each call is made by each identity: those with the right are let in, and all others are not.
func TestWhoMayCallWhat(t *testing.T) {
	t.Parallel()
	identities := map[string]string{
		"none":      "",
		"unknown":   "",
		"elsewhere": "lock,see,ask,break b/",
		"longer":    "lock,see,ask,break a/x/",
		"lock":      "lock a/", "see": "see a/", "ask": "ask a/", "break": "break a/",
		"all":      "lock,see,ask,break a/",
		"anywhere": "lock,see,ask,break *",
	}
	var file strings.Builder
	for name, rights := range identities {
		if rights != "" {
			fmt.Fprintf(&file, "%s sha256:%s %s\n", name, HashToken(name), rights)
		}
	}
	path := filepath.Join(t.TempDir(), "tokens")
	must.OK(t, os.WriteFile(path, []byte(file.String()), 0o600))
	table := rightsTable()
	for _, all := range []map[string]handler{calls, pages, openPages} {
		for pattern := range all {
			if _, is := table[pattern]; !is {
				t.Errorf("%s: the table does not say who may call it", pattern)
			}
		}
	}
	for pattern := range open {
		if rule, is := table[pattern]; !is || rule.permission != everybody {
			t.Errorf("%s: the table does not say that everybody may call it", pattern)
		}
	}
	access := must.Get(OpenAccess(path, nil))(t)
	for pattern, rule := range table {
		r := start(t, memlock.New(), Options{Access: access})
		g := r.hold("a/x", ownerA, driver.Exclusive, 1, nil)
		for who, rights := range identities {
			r.callAs(pattern, rule, who, rights, g.Fence)
		}
	}
}

// callAs makes a call as an identity, and checks whether it is let in.
func (r *rig) callAs(pattern string, rule callRule, who, rights string, fence uint64) {
	r.Helper()
	method, path, _ := strings.Cut(pattern, " ")
	if rule.path != "" {
		path = rule.path
	}
	body := ""
	if rule.body != nil {
		body = rule.body(fence)
	}
	header := []string{httpwire.ClientHeader, secret, httpwire.OwnerHeader, ownerB}
	if !strings.HasPrefix(body, "{") {
		header = append(header, "Content-Type", "application/x-www-form-urlencoded")
	}
	if who != "none" {
		header = append(header, "Authorization", "Bearer "+who)
	}
	resp, text := r.begin(method, path, body, header...)
	text = text[:min(len(text), 80)]
	login := resp.StatusCode == 303 && strings.HasPrefix(resp.Header.Get("Location"), "/login") && pattern != "POST /logout"
	nobody := resp.StatusCode == 401 || login
	denied := resp.StatusCode == 403 || rule.denied != nil && rule.denied(resp, text)
	switch {
	case rule.permission == everybody:
		if nobody || denied {
			r.Errorf("%s by %s: %d, want it for everybody", pattern, who, resp.StatusCode)
		}
	case rights == "":
		if !nobody {
			r.Errorf("%s by %s: %d %s, want 401", pattern, who, resp.StatusCode, text)
		}
	case nobody:
		r.Errorf("%s by %s: %d, and it is known", pattern, who, resp.StatusCode)
	default:
		want := rule.permission == someRight && !mayFor(rights, rule.rights) || rule.permission == someView && !strings.Contains(rights, "see")
		if denied != want {
			r.Errorf("%s by %s (%s): %d %s; denied: want %t", pattern, who, rights, resp.StatusCode, text, want)
		}
	}
}

// mayFor reports whether rights, as a file has them, include one of some for the names under "a/".
func mayFor(rights string, some Right) bool {
	names, prefix, _ := strings.Cut(rights, " ")
	if prefix != "a/" && prefix != "*" {
		return false
	}
	return slices.ContainsFunc(strings.Split(names, ","), func(name string) bool { return rightNames[name]&some != 0 })
}

// begin makes a request, and returns the answer with the first bytes of its body: a stream does not end.
func (r *rig) begin(method, path, body string, header ...string) (*http.Response, string) {
	r.Helper()
	req := must.Get(http.NewRequestWithContext(r.Context(), method, r.http.URL+path, strings.NewReader(body)))(r)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, Timeout: time.Minute}
	resp := must.Get(client.Do(req))(r)
	defer resp.Body.Close()
	text := make([]byte, 1000)
	n, _ := resp.Body.Read(text)
	return resp, string(text[:n])
}

// The name of the scheme may be in any case (RFC 9110), and the token not.
func TestBearerInAnyCase(t *testing.T) {
	t.Parallel()
	access := tokens(t, "me sha256:"+HashToken("Tok")+" lock *\n")
	for header, known := range map[string]bool{
		"Bearer Tok": true, "bearer Tok": true, "BEARER Tok": true, "Bearer tok": false, "BearerTok": false, "Basic Tok": false, "Bearer": false,
	} {
		r := httptest.NewRequest("GET", "/v1", nil)
		r.Header.Set("Authorization", header)
		if _, err := access.identify(r); (err == nil) != known {
			t.Errorf("%q: %v", header, err)
		}
	}
}
