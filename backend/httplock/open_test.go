package httplock

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

func TestURLs(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"http://":                                     "http://localhost",
		"http://h":                                    "http://h",
		"http://h/":                                   "http://h",
		"http://h,[::1]:9,g:7077/a%2Fb/c//":           "http://h/a%2Fb/c http://[::1]:9/a%2Fb/c http://g:7077/a%2Fb/c",
		"http://[::1]":                                "http://[::1]",
		"https://:hunter2@h,g:80/?timeout=1s":         "https://h https://g:80",
		"http+unix:///run/dist%20lock.sock":           "http+unix:///run/dist lock.sock",
		"http+unix://:hunter2@/run/x.sock":            "http+unix:///run/x.sock",
		"http+unix:/run/x.sock":                       "http+unix:///run/x.sock",
		"http+unix://run/x.sock":                      "",
		"http+unix:x.sock":                            "",
		"http+unix://":                                "",
		"http:h":                                      "",
		"http://h:0":                                  "",
		"http://h,,g":                                 "",
		"http://user:hunter2@h":                       "",
		"http://hunter2@h":                            "",
		"http://:hunter2%0A@h":                        "",
		"http://:hunter2%20@h":                        "",
		"http://:hunter2/2@h":                         "",
		"http://h#f":                                  "",
		"http://h?ca=/x":                              "",
		"http://h?colour=red":                         "",
		"http://h?timeout=0s":                         "",
		"http://h?password_file=/does/not/exist":      "",
		"http://:hunter2@h?password_file=/etc/passwd": "",
		"https://h?ca=/does/not/exist":                "",
	} {
		u, err := driver.ParseURL(raw)
		var o *urlOptions
		if err == nil {
			o, err = readURL(u, OpenOptions{})
		}
		if want == "" {
			if !errors.Is(err, driver.ErrInvalid) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%s: %v", raw, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", raw, err)
			continue
		}
		var labels []string
		for _, s := range o.servers {
			labels = append(labels, s.label)
		}
		expect.Equal(t, strings.Join(labels, " "), want, raw, "servers")
	}
	expect.Be(t, expect.Err(Open(t.Context(), "redis://h")), driver.ErrInvalid, "another scheme")
}

// Open goes on to the next server, and says what was wrong with each if none answers.
func TestOpenTriesAll(t *testing.T) {
	t.Parallel()
	gone, proxy, quiet, good := newFake(t), newFake(t), newFake(t), newFake(t)
	gone.Close()
	proxy.answer("/v1", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "Client sent an HTTP request to an HTTPS server.", 400)
	})
	quiet.answer("/v1", silent)
	hosts := func(servers ...*fake) string {
		var all []string
		for _, f := range servers {
			all = append(all, strings.TrimPrefix(f.URL, "http://"))
		}
		return "http://" + strings.Join(all, ",")
	}
	b := must.Get(Open(t.Context(), hosts(gone, proxy, quiet, good)+"?timeout=8s"))(t)
	defer b.Close()
	want := fullCaps
	want.Name, want.Detached = "store:1/a b", true
	expect.Equal(t, b.Caps(), want, "caps")
	for url, parts := range map[string][]string{
		hosts(gone, proxy):                  {gone.URL + ": dial tcp", proxy.URL + `: the answer "400 Bad Request" is not`},
		hosts(gone, quiet) + "?timeout=1ms": {quiet.URL + ": no answer", "no answer within "},
	} {
		_, err := Open(t.Context(), url)
		for _, part := range parts {
			if err == nil || !strings.Contains(err.Error(), part) || driver.Final(err) {
				t.Errorf("%s: the error lacks %q, or is final: %v", url, part, err)
			}
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	expect.Be(t, expect.Err(Open(ended, hosts(quiet))), context.Canceled, "with a context that has ended")
}

// A refused token is ErrInvalid. One from a file is read again when it was refused. None is shown.
func TestTokens(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	valid := "one"
	var guarded http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f.set(func() {}); r.Header.Get("Authorization") == "Bearer "+valid {
			f.ServeHTTP(w, r)
			return
		}
		w.Header().Set(httpwire.RequestHeader, r.Header.Get(httpwire.RequestHeader))
		w.Header().Set("Content-Type", httpwire.ProblemType)
		w.WriteHeader(http.StatusUnauthorized)
		w.Write([]byte(`{"distlock":"denied","detail":"the server doesn't know this token"}`))
	})
	srv := httptest.NewServer(guarded)
	defer srv.Close()
	host := strings.TrimPrefix(srv.URL, "http://")
	for _, raw := range []string{"http://" + host, "http://:hunter2@" + host} {
		_, err := Open(t.Context(), raw)
		if !errors.Is(err, driver.ErrInvalid) || strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), "know this token") {
			t.Errorf("%s: %v", raw, err)
		}
	}
	b := must.Get(Open(t.Context(), "http://:one@"+host))(t)
	b.Close()
	file := filepath.Join(t.TempDir(), "token")
	write := func(text string) {
		must.OK(t, os.WriteFile(file, []byte(text), 0o600))
	}
	write("one\n")
	b = must.Get(Open(t.Context(), "http://"+host+"?password_file="+file))(t)
	defer b.Close()
	valid = "two"
	// No wait may end for good because the server knows the next token before the file has it.
	if _, err := b.Acquire(soon(t), requestFor("job")); !errors.Is(err, driver.ErrUnsent) || driver.Final(err) || strings.Contains(err.Error(), "one") {
		t.Errorf("with an old token: %v", err)
	}
	write("hunter2 hunter3")
	if _, err := b.Acquire(soon(t), requestFor("job")); !errors.Is(err, driver.ErrUnsent) || driver.Final(err) || strings.Contains(err.Error(), "hunter") {
		t.Errorf("with a wrong file: %v", err)
	}
	write("two")
	expect.OK(t, expect.Err(b.Acquire(soon(t), requestFor("job"))), "with the new token")
}

// Two requests that were refused with the old token are both sent again with the new one, whichever rereads the file.
func TestTokenIsReplacedDuringTwoRequests(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	file := filepath.Join(t.TempDir(), "token")
	write := func(text string) {
		must.OK(t, os.WriteFile(file, []byte(text), 0o600))
	}
	write("old")
	b := must.Get(Open(t.Context(), f.URL+"?password_file="+file))(t)
	defer b.Close()
	var refused sync.WaitGroup // both, before one of them has its answer
	refused.Add(2)
	f.answer("/v1/release", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "Bearer new" {
			f.mark(w)
			w.WriteHeader(http.StatusNoContent)
			return
		}
		refused.Done()
		refused.Wait()
		w.Header().Set("Content-Type", httpwire.ProblemType)
		w.WriteHeader(http.StatusUnauthorized)
		w.Write([]byte(`{"distlock":"denied","detail":"the server doesn't know this token"}`))
	})
	write("new")
	errs := make(chan error, 2)
	for range 2 {
		go func() { errs <- b.Release(soon(t), requestFor("job").Hold) }()
	}
	for range 2 {
		expect.OK(t, <-errs)
	}
}

func TestUnixSocket(t *testing.T) {
	f := newFake(t)
	dir, err := os.MkdirTemp("", "") // t.TempDir is too long a path for a socket on some systems
	must.OK(t, err)
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Skip(err)
	}
	srv := &http.Server{Handler: f}
	go srv.Serve(l)
	defer srv.Close()
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	b := must.Get(Open(t.Context(), "http+unix://"+path))(t)
	defer b.Close()
	expect.OK(t, expect.Err(b.Acquire(soon(t), requestFor("job"))))
	srv.Close()
	_, _ = b.Acquire(soon(t), requestFor("job")) // its connection may end just then, so that the outcome is unknown
	if _, err := b.Acquire(soon(t), requestFor("job")); !errors.Is(err, driver.ErrUnsent) || !strings.Contains(err.Error(), "http+unix://"+path) {
		t.Errorf("without a server: %v", err)
	}
}

// authorityOf writes the certificate that a client of srv needs, and returns the file.
func authorityOf(t *testing.T, srv *httptest.Server) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "ca.pem")
	block := &pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}
	must.OK(t, os.WriteFile(file, pem.EncodeToMemory(block), 0o600))
	return file
}

func TestTLS(t *testing.T) {
	t.Parallel()
	srv := httptest.NewTLSServer(newFake(t))
	defer srv.Close()
	ca := authorityOf(t, srv)
	b := must.Get(Open(t.Context(), srv.URL+"?ca="+ca))(t)
	defer b.Close()
	expect.OK(t, expect.Err(b.Acquire(soon(t), requestFor("job"))))
	for _, raw := range []string{srv.URL, strings.Replace(srv.URL, "https", "http", 1)} {
		if _, err := Open(t.Context(), raw); err == nil || !strings.Contains(err.Error(), "certificate") && !strings.Contains(err.Error(), "400") {
			t.Errorf("%s: %v", raw, err)
		}
	}
}

// A server that wants a certificate may end the connection just before the request is written.
func TestMissingCertificateIsNamed(t *testing.T) {
	t.Parallel()
	srv := httptest.NewUnstartedServer(newFake(t))
	srv.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	defer srv.Close()
	u := must.Get(driver.ParseURL(srv.URL + "?ca=" + authorityOf(t, srv)))(t)
	o := must.Get(readURL(u, OpenOptions{}))(t)
	c := &client{servers: o.servers, certs: o.tls, token: o.token, transport: o.transport(t.Context()), quiet: quietTime}
	dial, conns := c.transport.DialTLSContext, 0
	c.transport.DialTLSContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if conns++; conns == 1 && err == nil {
			conn = closed{conn}
		}
		return conn, err
	}
	if err := c.open(soon(t), o.timeout); err == nil || !strings.Contains(err.Error(), "certificate required") {
		t.Errorf("%v", err)
	}
}

// closed is a connection that was closed before anything was written.
type closed struct{ net.Conn }

func (closed) Write([]byte) (int, error) { return 0, net.ErrClosed }
