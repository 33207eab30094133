package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/server/internal/page"
)

// ways are how a client shows who it is.
var ways = map[string]func(r *http.Request, who string){
	"token":  func(r *http.Request, who string) { r.Header.Set("Authorization", "Bearer "+who) },
	"cookie": func(r *http.Request, who string) { r.AddCookie(&http.Cookie{Name: cookie, Value: who}) },
	"certificate": func(r *http.Request, who string) {
		cert := &x509.Certificate{Subject: pkix.Name{CommonName: who}}
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}, VerifiedChains: [][]*x509.Certificate{{cert}}}
	},
}

// A client may do the same however it shows who it is. A certificate that was not verified shows nothing.
func TestWaysToShowWhoCalls(t *testing.T) {
	t.Parallel()
	rights := map[string]string{"l": "lock a/", "s": "see a/", "a": "ask a/", "b": "break a/", "all": "lock,see,ask,break *", "other": "lock,see,ask,break b/"}
	var file strings.Builder
	for who, r := range rights {
		file.WriteString(who + " sha256:" + HashToken(who) + " " + r + "\n" + who + " cert:" + who + " " + r + "\n")
	}
	answers := map[string][]int{}
	for way, show := range ways {
		synctest.Test(t, func(t *testing.T) {
			s := serverOf(t, Options{Access: tokens(t, file.String())})
			table := rightsTable()
			for _, route := range slices.Sorted(routeList()) {
				rule := table[route]
				method, path, _ := strings.Cut(route, " ")
				if rule.path != "" {
					path = rule.path
				}
				for _, who := range slices.Sorted(maps.Keys(rights)) {
					body := ""
					if rule.body != nil {
						body = rule.body(1)
					}
					ctx, cancel := context.WithTimeout(t.Context(), time.Second) // of a stream
					r := httptest.NewRequestWithContext(ctx, method, path, strings.NewReader(body))
					r.Header.Set(httpwire.ClientHeader, secret)
					r.Header.Set(httpwire.OwnerHeader, ownerB)
					show(r, who)
					w := httptest.NewRecorder()
					s.ServeHTTP(w, r)
					cancel()
					answers[way] = append(answers[way], w.Code)
				}
			}
		})
	}
	for way, all := range answers {
		if !slices.Equal(all, answers["token"]) || slices.Contains(all, 401) || !slices.Contains(all, 403) {
			t.Errorf("%s:\n%v\na token:\n%v", way, all, answers["token"])
		}
	}
	s := serverOf(t, Options{Access: tokens(t, file.String())})
	r := httptest.NewRequest("GET", "/v1", nil)
	ways["certificate"](r, "all")
	r.TLS.VerifiedChains = nil
	w := httptest.NewRecorder()
	if s.ServeHTTP(w, r); w.Code != 401 {
		t.Errorf("a certificate that was not verified: %d", w.Code)
	}
	r = httptest.NewRequest("POST", "/login", strings.NewReader("token=wrong"))
	ways["certificate"](r, "all")
	w = httptest.NewRecorder()
	if s.ServeHTTP(w, r); w.Code != 401 || w.Header().Get("Set-Cookie") != "" {
		t.Errorf("a login with a wrong token and a certificate: %d %v", w.Code, w.Header())
	}
}

// Without a file of tokens clients are known by the common names of their certificates: in quotas and in the log.
func TestCertificatesWithoutTokens(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	s := serverOf(t, Options{MaxHolds: 1, Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	for _, c := range []struct {
		who  string
		want int
	}{{"billing", 200}, {"ci", 200}, {"billing", 429}} {
		r := httptest.NewRequestWithContext(t.Context(), "POST", "/v1/locks/"+driver.NewOwner(), nil)
		cert := &x509.Certificate{Subject: pkix.Name{CommonName: c.who}}
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}, VerifiedChains: [][]*x509.Certificate{{cert}}}
		w := httptest.NewRecorder()
		if s.ServeHTTP(w, r); w.Code != c.want || c.want == 429 && !strings.Contains(w.Body.String(), "the limit for billing") {
			t.Errorf("%s: %d %s", c.who, w.Code, w.Body)
		}
	}
	if text := log.String(); !strings.Contains(text, "who=billing") || !strings.Contains(text, "who=ci") {
		t.Error(text)
	}
}

func serverOf(t *testing.T, o Options) *Server {
	t.Helper()
	s := must.Get(New(memlock.New(), o))(t)
	t.Cleanup(s.drain)
	return s
}

// No answer, metric or line of the log has an owner, a token or the secret of a client, for a client that may do all but
// break. Each answer says how it may be kept, and that its type is not to be guessed.
func TestSecretsAreKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s := serverOf(t, Options{
			Access: tokens(t, "holder sha256:"+HashToken("holders-token")+" lock *\nviewer sha256:"+HashToken("viewers-token")+" lock,see,ask *\n"),
			Log:    slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		})
		as := []string{"Authorization", "Bearer holders-token", httpwire.ClientHeader, secret}
		for _, name := range []string{"a/x", "a/lost"} {
			if w := bare(t.Context(), s, "POST", "/v1/acquire", hold(name, ownerA), as...); w.Code != 200 {
				t.Fatal(w.Code, w.Body)
			}
		}
		must.OK(t, s.backend.Release(t.Context(), driver.Hold{Name: "a/lost", Owner: ownerA}))
		bare(t.Context(), s, "POST", "/v1/renew", `{"holds":[`+hold("a/lost", ownerA)+`]}`, as...)
		s.seen.UnknownRenewal(driver.Hold{Name: "a/x", Owner: ownerA}, errText("no answer for "+ownerA))
		go bare(t.Context(), s, "POST", "/v1/acquire", waiting("a/x", ownerB, 50_000), as...)
		synctest.Wait()

		own := "00000000-0000-4000-8000-00000000000e"
		table := rightsTable()
		for _, route := range slices.Sorted(routeList()) {
			method, path, _ := strings.Cut(route, " ")
			rule := table[route]
			if rule.path != "" {
				path = rule.path
			}
			body := ""
			if rule.body != nil {
				body = strings.NewReplacer(ownerA, own, ownerB, own).Replace(rule.body(1))
			}
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second) // of a stream
			w := bare(ctx, s, method, path, body, "Authorization", "Bearer viewers-token", httpwire.ClientHeader, secret, httpwire.OwnerHeader, own)
			cancel()
			_ = w.Body.WriteByte('\n')
			text := w.Body.String()
			_ = w.Header().Write(w.Body)
			for _, secret := range []string{ownerA, ownerB, "holders-token", "viewers-token", HashToken("holders-token"), secret} {
				if strings.Contains(w.Body.String(), secret) {
					t.Errorf("%s tells %s:\n%s", route, secret, w.Body)
				}
			}
			h := w.Header()
			if cache := h.Get("Cache-Control"); cache != "no-store" && route != "GET /page/{asset}" || h.Get("X-Content-Type-Options") != "nosniff" {
				t.Errorf("%s: headers %v", route, h)
			}
			if strings.HasPrefix(h.Get("Content-Type"), "text/html") && h.Get("Content-Security-Policy") != page.Policy && !strings.HasPrefix(text, "<a href") {
				t.Errorf("%s has no policy: %v %s", route, h, text)
			}
		}
		for _, secret := range []string{ownerA, ownerB, own, "holders-token", "viewers-token", secret} {
			if strings.Contains(log.String(), secret) {
				t.Errorf("the log tells %s:\n%s", secret, &log)
			}
		}
	})
}

type errText string

func (e errText) Error() string { return string(e) }

// Names, metadata and secrets with lines of their own make no events, headers or lines of the log.
func TestInjection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s := serverOf(t, Options{Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
		const name = "a\r\n\r\nevent: lost\r\ndata: {}\r\n\r\n\u2028</script><script>alert(1)</script>"
		g := must.Get(s.backend.Acquire(t.Context(), driver.Request{
			Hold: driver.Hold{Name: name, Owner: ownerB, Mode: driver.Exclusive, TTL: time.Hour}, Meta: map[string]string{"program": name, name: name},
		}))(t)
		revocable := `{"name":"x` + strings.NewReplacer("\r", `\r`, "\n", `\n`).Replace(name) + `","owner":"` + ownerA + `","ttl_ms":60000,"revocable":true}`
		if w := bare(t.Context(), s, "POST", "/v1/acquire", revocable, httpwire.ClientHeader, secret); w.Code != 200 {
			t.Fatal(w.Code, w.Body)
		}
		if w := bare(t.Context(), s, "POST", "/v1/locks/"+httpwire.SegmentOf("x"+name)+"/ask", `{"owner":"`+ownerA+`"}`); w.Code != 204 {
			t.Fatal(w.Code, w.Body)
		}
		for _, path := range []string{"/v1/news", "/v1/events", "/v1/events?page=hot", "/v1/events?page=losses", "/v1/events?page=lock&name=" + url.QueryEscape(name)} {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			w := bare(ctx, s, "GET", path, "", httpwire.ClientHeader, secret)
			cancel()
			for line := range strings.Lines(w.Body.String()) {
				line = strings.TrimSuffix(line, "\n")
				event := slices.Contains([]string{"", ": ping", "event: hello", "event: asked", "event: change"}, line)
				if !event && (!strings.HasPrefix(line, `data: {`) || line == "data: {}" && strings.Count(w.Body.String(), "\ndata: {}\n") > 1) || strings.ContainsAny(line, "\r\u2028<") {
					t.Errorf("%s: line %q", path, line)
				}
			}
			if !strings.Contains(w.Body.String(), "alert(1)") && !strings.Contains(path, "page=") {
				t.Errorf("%s does not have the name: %s", path, w.Body)
			}
		}
		form := url.Values{"fence": {"1"}, "confirm": {page.Shown(name)}}
		w := bare(t.Context(), s, "POST", "/lock/break?name="+url.QueryEscape(name), strings.Replace(form.Encode(), "=1", "="+fenceText(g), 1))
		if to := w.Header().Get("Location"); w.Code != 303 || strings.ContainsAny(to, "\r\n <") {
			t.Errorf("%d to %q", w.Code, to)
		}
		if n := strings.Count(log.String(), "\n"); n != 8 || strings.Contains(log.String(), "\r") {
			t.Errorf("%d lines in the log:\n%s", n, &log)
		}
	})
}

func fenceText(g driver.Grant) string { return strconv.FormatUint(g.Fence, 10) }

// A login sends its client to no other server, and keeps the token where no script and no other site gets it.
func TestLoginGoesNowhereElse(t *testing.T) {
	t.Parallel()
	s := serverOf(t, Options{Access: tokens(t, "me sha256:"+HashToken("t")+" see *\n")})
	for _, next := range []string{
		"//evil.example", "///evil.example", `/\evil.example`, `\\evil.example`, "https://evil.example", "javascript:alert(1)", "/\t/evil.example",
		"/a\r\nSet-Cookie: x=y", "evil.example", "", "/./\t/evil.example", "https:evil.example", "/%0d%0aX: y",
	} {
		w := bare(t.Context(), s, "POST", "/login", url.Values{"token": {"t"}, "next": {next}}.Encode())
		to, err := url.Parse(w.Header().Get("Location"))
		if err != nil || w.Code != 303 || to.Host != "" || to.Scheme != "" || !strings.HasPrefix(to.Path, "/") || strings.HasPrefix(to.Path, "//") || strings.ContainsAny(w.Header().Get("Location"), "\r\n\t\\") {
			t.Errorf("%q: %d to %q", next, w.Code, w.Header().Get("Location"))
		}
		set := w.Header().Get("Set-Cookie")
		for _, flag := range []string{"; HttpOnly", "; SameSite=Strict", "; Path=/"} {
			if !strings.Contains(set, flag) || strings.Contains(set, "Domain") {
				t.Errorf("the cookie is %q, without %s", set, flag)
			}
		}
		if w := bare(t.Context(), s, "POST", "/login", url.Values{"token": {"t"}}.Encode(), "X-Forwarded-Proto", "https"); !strings.Contains(w.Header().Get("Set-Cookie"), "; Secure") {
			t.Error("with TLS the cookie may go without")
		}
	}
	for _, path := range []string{"/login", "/logout", "/lock/break?name=x", "/lock/ask?name=x"} {
		if w := bare(t.Context(), s, "POST", path, "token=t", "Sec-Fetch-Site", "cross-site", "Cookie", cookie+"=t"); w.Code != 403 || w.Header().Get("Set-Cookie") != "" {
			t.Errorf("%s by another site: %d %v", path, w.Code, w.Header())
		}
	}
}

// The news of a client are no other identity's, also if that has learned the client's secret.
func TestNewsOfAnotherIdentity(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := serverOf(t, Options{Access: tokens(t, "a sha256:"+HashToken("a")+" lock,ask a/\nb sha256:"+HashToken("b")+" lock b/\n")})
		revocable := strings.Replace(hold("a/x", ownerA), "}", `,"revocable":true}`, 1)
		if w := bare(t.Context(), s, "POST", "/v1/acquire", revocable, "Authorization", "Bearer a", httpwire.ClientHeader, secret); w.Code != 200 {
			t.Fatal(w.Code, w.Body)
		}
		if w := bare(t.Context(), s, "POST", "/v1/locks/a%2Fx/ask", `{"owner":"`+ownerA+`"}`, "Authorization", "Bearer a"); w.Code != 204 {
			t.Fatal(w.Code, w.Body)
		}
		for _, who := range []string{"b", "a"} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			w := bare(ctx, s, "GET", "/v1/news", "", "Authorization", "Bearer "+who, httpwire.ClientHeader, secret)
			cancel()
			if got := strings.Contains(w.Body.String(), ownerA); got != (who == "a") {
				t.Errorf("the news of %s:\n%s", who, w.Body)
			}
		}
	})
}

// A batch renews the holds for which there is the right, and no others.
func TestBatchOfSeveralPrefixes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := serverOf(t, Options{Access: tokens(t, "a sha256:"+HashToken("a")+" lock a/\n")})
		for name, owner := range map[string]string{"a/x": ownerA, "b/x": ownerB} {
			must.Get(s.backend.Acquire(t.Context(), driver.Request{Hold: driver.Hold{Name: name, Owner: owner, Mode: driver.Exclusive, TTL: time.Second}}))(t)
		}
		w := bare(t.Context(), s, "POST", "/v1/renew", `{"holds":[`+hold("b/x", ownerB)+","+hold("a/x", ownerA)+`]}`, "Authorization", "Bearer a")
		if w.Code != 200 || !strings.Contains(w.Body.String(), `{"index":0,"outcome":"denied"`) || !strings.Contains(w.Body.String(), `{"index":1,"outcome":"ok"}`) {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		time.Sleep(2 * time.Second)
		for name, holders := range map[string]int{"a/x": 1, "b/x": 0} {
			if info, err := s.inspection.Inspect(t.Context(), name); err != nil || len(info.Holders) != holders {
				t.Errorf("%s: %+v, %v", name, info, err)
			}
		}
	})
}

// Names are compared by their bytes: two names that look the same are two locks, and a right is for one of them.
func TestNormalForms(t *testing.T) {
	t.Parallel()
	s := serverOf(t, Options{Access: tokens(t, "a sha256:"+HashToken("a")+" lock \u00e9/\n")})
	for name, status := range map[string]int{"\u00e9/x": 200, "\u00e9/\U0001f512": 200, "\u00e9/\ufffd": 200, "e\u0301/x": 403} {
		if w := bare(t.Context(), s, "POST", "/v1/acquire", hold(name, ownerA), "Authorization", "Bearer a"); w.Code != status {
			t.Errorf("%q: %d %s", name, w.Code, w.Body)
		}
	}
	pair := strings.Replace(hold("\u00e9/PAIR", ownerB), "PAIR", `\ud83d\udd12`, 1)
	if w := bare(t.Context(), s, "POST", "/v1/acquire", pair, "Authorization", "Bearer a"); w.Code != 423 {
		t.Errorf("a pair of surrogates: %d %s", w.Code, w.Body)
	}
}

// A file of tokens that is too long gives no rights: the last prefix might be cut off.
func TestLongFileOfTokens(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tokens")
	line := "\nci sha256:" + HashToken("c") + " lock billing/"
	must.OK(t, os.WriteFile(path, []byte(strings.Repeat("#", maxAccess-len(line)+3)+line), 0o600))
	if _, err := OpenAccess(path, nil); err == nil || !strings.Contains(err.Error(), "more than 1048576 bytes") {
		t.Error(err)
	}
}

// A panic is in the log.
func TestPanicIsLogged(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s := serverOf(t, Options{Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	h := s.serve("GET /bug", nil, func(*exchange) error { panic("oh") }, nil)
	defer func() {
		if v := recover(); v != "oh" || !strings.Contains(log.String(), `call="GET /bug" panic=oh stack=`) {
			t.Errorf("%v, log %s", v, &log)
		}
	}()
	h.ServeHTTP(&recorder{ResponseWriter: httptest.NewRecorder()}, httptest.NewRequest("GET", "/bug", nil))
}
