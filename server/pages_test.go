package server

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/server/internal/page"
)

// pageRig has a server with locks that an attacker has named.
func pageRig(t *testing.T, o Options) *rig {
	t.Helper()
	r := start(t, memlock.New(), o)
	return r
}

const evil = `<script>alert(1)</script>`

func (r *rig) hold(name, owner string, mode driver.Mode, limit int, meta map[string]string) driver.Grant {
	r.Helper()
	g, err := r.s.backend.Acquire(r.Context(), driver.Request{
		Hold: driver.Hold{Name: name, Owner: owner, Mode: mode, TTL: 30 * time.Second}, Fences: 1, Limit: limit, Meta: meta,
	})
	if err != nil {
		r.Fatal(err)
	}
	return g
}

// Every page is made in each language, and shows the texts of attackers as texts.
func TestPagesEscape(t *testing.T) {
	t.Parallel()
	r := pageRig(t, Options{})
	meta := map[string]string{"program": evil, "pid": evil, "host": evil, evil: evil}
	r.hold(evil, ownerA, driver.Exclusive, 0, meta)
	r.hold("permits", ownerB, driver.Counted, 3, nil)
	r.s.seen.Lost(driver.Hold{Name: evil, Owner: ownerA})
	r.s.seen.Refused(driver.Hold{Name: evil, Owner: ownerB}, time.Now())
	for _, lang := range []string{"en-GB,en;q=0.9", "zh-TW,zh;q=0.9,en;q=0.8"} {
		for _, path := range []string{"/", "/?prefix=%3Cscript%3E&sort=held", "/?sort=name", "/lock?name=%3Cscript%3Ealert(1)%3C/script%3E&done=break", "/hot", "/losses", "/backend"} {
			resp, text := r.request("GET", path, "", "Accept-Language", lang)
			if resp.StatusCode != 200 || strings.Contains(text, evil) || strings.Contains(text, "ZgotmplZ") {
				t.Errorf("%s: %d %s", path, resp.StatusCode, text)
			}
			if strings.Contains(text, ownerA) || strings.Contains(text, ownerB) {
				t.Errorf("%s shows an owner:\n%s", path, text)
			}
			if strings.HasPrefix(lang, "zh") != strings.Contains(text, `<html lang="zh-CN">`) {
				t.Errorf("%s with %s has another language", path, lang)
			}
			if csp := resp.Header.Get("Content-Security-Policy"); csp != page.Policy || resp.Header.Get("X-Content-Type-Options") != "nosniff" {
				t.Errorf("%s: headers %v", path, resp.Header)
			}
			for _, inline := range []string{" style=", "<style", " onclick=", "<script>"} {
				if strings.Contains(text, inline) {
					t.Errorf("%s has %s, which the policy forbids", path, inline)
				}
			}
		}
	}
}

// The list has the most waited for first, then the longest held.
func TestListOrder(t *testing.T) {
	t.Parallel()
	r := pageRig(t, Options{})
	r.hold("second", ownerA, driver.Exclusive, 0, map[string]string{"program": "p", "pid": "7", "host": "h"})
	time.Sleep(time.Millisecond)
	r.hold("third", ownerB, driver.Exclusive, 0, nil)
	r.hold("first", driver.NewOwner(), driver.Exclusive, 0, nil)
	answer := r.background("POST", "/v1/acquire", waiting("first", ownerB, 60_000))
	r.await("first", 1)
	_, text := r.request("GET", "/", "")
	a, b, c := strings.Index(text, ">first<"), strings.Index(text, ">second<"), strings.Index(text, ">third<")
	if a < 0 || a > b || b > c {
		t.Errorf("order %d %d %d:\n%s", a, b, c, text)
	}
	_, text = r.request("GET", "/?prefix=se", "")
	if !strings.Contains(text, ">second<") || strings.Contains(text, ">third<") {
		t.Errorf("the search for se found:\n%s", text)
	}
	_ = r.s.Drain(t.Context())
	answer(503, "")
}

// form makes a request as a page does.
func (r *rig) form(path, body string, header ...string) (*http.Response, string) {
	r.Helper()
	c := *r.http.Client()
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	req := must.Get(http.NewRequestWithContext(r.Context(), "POST", r.http.URL+path, strings.NewReader(body)))(r)
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp := must.Get(c.Do(req))(r)
	defer resp.Body.Close()
	var b strings.Builder
	_ = resp.Write(&b)
	return resp, b.String()
}

// Ask and break need the right, the fence of the hold and, to break, the name as it was typed.
func TestAskAndBreak(t *testing.T) {
	t.Parallel()
	r := pageRig(t, Options{})
	asked := make(chan struct{})
	name := "a\nb <c>"
	g := must.Get(r.s.backend.Acquire(t.Context(), driver.Request{
		Hold: driver.Hold{Name: name, Owner: ownerA, Mode: driver.Exclusive, TTL: time.Minute}, Fences: 1, OnRevoke: func() { close(asked) },
	}))(t)
	query := "?" + url.Values{"name": {name}}.Encode()
	post := func(path, fence, confirm string, status int, says string) {
		t.Helper()
		resp, text := r.form(path+query, url.Values{"fence": {fence}, "confirm": {confirm}}.Encode())
		if resp.StatusCode != status || !strings.Contains(text, says) {
			t.Errorf("%s: %s", path, text)
		}
	}
	fence := fmt.Sprint(g.Fence)
	post("/lock/ask", fence, "", 303, "done=ask")
	<-asked
	post("/lock/break", fence, "", 400, "the name that was typed is not the lock")
	post("/lock/break", fence, name, 400, "the name that was typed is not the lock")
	post("/lock/break", "77777", `a\nb <c>`, 303, "done=gone")
	post("/lock/break", "", `a\nb <c>`, 400, "want the fence")
	post("/lock/break", fence, `a\nb <c>`, 303, "done=break")
	r.wants(410, "lost", "POST", "/v1/release", hold("a\nb <c>", ownerA))
	if _, text := r.request("GET", "/losses", ""); !strings.Contains(text, "broken") {
		t.Errorf("the incident is not shown:\n%s", text)
	}
}

// Another site can't make a browser change anything in a page.
func TestPagesOfOtherSites(t *testing.T) {
	t.Parallel()
	r := pageRig(t, Options{})
	for _, path := range []string{"/lock/ask?name=x", "/lock/break?name=x", "/login", "/logout"} {
		r.wants(403, "a page of another site", "POST", path, "", "Sec-Fetch-Site", "cross-site")
	}
}

// People log in with a token, which is kept in a cookie, and can see and do what the token allows.
func TestLogin(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tokens")
	text := "ops sha256:" + HashToken("o") + " see,ask,break *\nci sha256:" + HashToken("c") + " see ci/\n"
	must.OK(t, os.WriteFile(path, []byte(text), 0o600))
	access := must.Get(OpenAccess(path, nil))(t)
	r := pageRig(t, Options{Access: access})
	g := r.hold("ci/x", ownerA, driver.Exclusive, 0, nil)
	r.hold("secret/y", ownerB, driver.Exclusive, 0, nil)
	r.s.seen.Lost(driver.Hold{Name: "secret/y", Owner: ownerB})
	r.s.seen.Refused(driver.Hold{Name: "secret/y", Owner: ownerB}, time.Now())

	r.http.Client().CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	if resp, _ := r.request("GET", "/lock?name=a%26b", ""); resp.StatusCode != 303 || resp.Header.Get("Location") != "/login?next=%2Flock%3Fname%3Da%2526b" {
		t.Errorf("without a token: %v", resp)
	}
	if resp, text := r.request("GET", "/lock?name=a%26b", "", "Sec-Fetch-Site", "cross-site"); resp.StatusCode != 200 || !strings.Contains(text, `content="0;url=/lock?name=a%26b"`) {
		t.Errorf("from another site: %v %s", resp, text)
	}
	for _, action := range []string{"ask", "break"} { // a form of a page whose token is not valid any more
		if resp, text := r.form("/lock/"+action+"?name=a%26b", "fence=1"); resp.StatusCode != 303 || resp.Header.Get("Location") != "/login?next=%2Flock%3Fname%3Da%2526b" {
			t.Errorf("%s without a token: %s", action, text)
		}
	}
	r.wants(401, "", "GET", "/v1/events", "")
	if _, text := r.request("GET", "/login", ""); strings.Contains(text, "mem:") {
		t.Errorf("the login names the backend:\n%s", text)
	}
	if resp, text := r.form("/login", "token=wrong"); resp.StatusCode != 401 || !strings.Contains(text, "know this token") || len(resp.Cookies()) != 0 {
		t.Errorf("a wrong token: %s", text)
	}
	for next, want := range map[string]string{"/hot": "/hot", "//evil.example/": "/", "https://evil.example": "/", `/\evil.example`: "/", "": "/"} {
		if resp, _ := r.form("/login", url.Values{"token": {"o"}, "next": {next}}.Encode()); resp.Header.Get("Location") != want {
			t.Errorf("after the login with %s: %v", next, resp.Header)
		}
	}
	resp, _ := r.form("/login", "token=c")
	c := resp.Cookies()[0]
	if resp.StatusCode != 303 || !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Value != "c" {
		t.Errorf("cookie %v", c)
	}
	as := func(token string) []string { return []string{"Cookie", cookie + "=" + token} }
	for _, path := range []string{"/", "/hot", "/losses"} {
		if _, text := r.request("GET", path, "", as("c")...); strings.Contains(text, "secret/y") {
			t.Errorf("%s shows a lock that the viewer may not see:\n%s", path, text)
		}
		if _, text := r.request("GET", path, "", as("o")...); !strings.Contains(text, "secret/y") {
			t.Errorf("%s does not show a lock:\n%s", path, text)
		}
	}
	if resp, text := r.request("GET", "/lock?name=secret/y", "", as("c")...); resp.StatusCode != 403 || !strings.Contains(text, "the right to see") {
		t.Errorf("%d %s", resp.StatusCode, text)
	}
	r.wants(403, "the right to see", "GET", "/v1/events?page=lock&name=secret/y", "", as("c")...)
	_, text = r.request("GET", "/lock?name=ci/x", "", as("o")...)
	if !strings.Contains(text, "data-break=") || !strings.Contains(text, "/lock/ask") {
		t.Errorf("no buttons:\n%s", text)
	}
	_, text = r.request("GET", "/lock?name=ci/x", "", as("c")...)
	if strings.Contains(text, "data-break=") || strings.Contains(text, "/lock/ask") {
		t.Errorf("buttons for one without the right:\n%s", text)
	}
	form := url.Values{"fence": {fmt.Sprint(g.Fence)}, "confirm": {"ci/x"}}.Encode()
	for _, path := range []string{"/lock/ask?name=ci/x", "/lock/break?name=ci/x"} {
		if resp, text := r.form(path, form, as("c")...); resp.StatusCode != 403 {
			t.Errorf("%s: %s", path, text)
		}
	}
	if resp, _ := r.form("/logout", "", as("c")...); resp.Cookies()[0].MaxAge >= 0 {
		t.Errorf("after the logout: %v", resp)
	}
}

// pieceID is the id of a lock's elements in a page.
func pieceID(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:8])
}

// A viewer gets what is there, then what changes.
func TestEvents(t *testing.T) {
	t.Parallel()
	r := pageRig(t, Options{})
	r.hold("x", ownerA, driver.Exclusive, 0, nil)
	next, _ := r.stream("GET", "/v1/events?prefix=x", "")
	next("hello")
	if data := next("change"); !strings.Contains(data, `"order":["`+pieceID("x")+`"]`) || strings.Contains(data, ownerA) {
		t.Error(data)
	}
	r.hold("y", ownerB, driver.Exclusive, 0, nil)
	r.hold("x2", ownerB, driver.Exclusive, 0, nil)
	data := next("change")
	for !strings.Contains(data, pieceID("x2")) { // the first one may be from before
		data = next("change")
	}
	if strings.Contains(data, `"id":"`+pieceID("x")+`"`) || strings.Contains(data, pieceID("y")) {
		t.Errorf("more than what has changed: %s", data)
	}
	r.wants(204, "", "POST", "/v1/release", hold("x", ownerA))
	r.wants(204, "", "POST", "/v1/release", hold("x2", ownerB))
	for data = next("change"); !strings.Contains(data, `"id":"rows","set":[],"order":[]`); {
		data = next("change")
	}
	r.wants(400, "want one of: locks", "GET", "/v1/events?page=elsewhere", "")
}
