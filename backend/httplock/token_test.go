package httplock

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testcert"
)

// A token of OpenOptions.Credentials is asked for by Open, and again when a server refuses it.
func TestCredentials(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	var mu sync.Mutex
	valid, current, broken, asked := "one", "one", error(nil), 0
	set := func(v, c string, err error) {
		mu.Lock()
		defer mu.Unlock()
		valid, current, broken = v, c, err
	}
	var together atomic.Pointer[sync.WaitGroup] // requests that are refused at one moment
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		ok := r.Header.Get("Authorization") == "Bearer "+valid
		mu.Unlock()
		if ok {
			f.ServeHTTP(w, r)
			return
		}
		if g := together.Load(); g != nil {
			g.Done()
			g.Wait()
		}
		w.Header().Set(httpwire.RequestHeader, r.Header.Get(httpwire.RequestHeader))
		w.Header().Set("Content-Type", httpwire.ProblemType)
		w.WriteHeader(http.StatusUnauthorized)
		w.Write([]byte(`{"distlock":"denied","detail":"the server doesn't know this token"}`))
	}))
	defer srv.Close()
	o := &OpenOptions{Credentials: func(context.Context) (string, string, error) {
		mu.Lock()
		defer mu.Unlock()
		asked++
		return "nobody", current, broken
	}}
	if _, err := OpenWith(t.Context(), strings.Replace(srv.URL, "//", "//:secret@", 1), o); !errors.Is(err, driver.ErrInvalid) || strings.Contains(err.Error(), "secret") {
		t.Errorf("two tokens: %v; want ErrInvalid", err)
	}
	errVault := errors.New("the vault is sealed")
	set("one", "one", errVault)
	if _, err := OpenWith(t.Context(), srv.URL, o); !errors.Is(err, errVault) || driver.Final(err) {
		t.Errorf("credentials that fail: %v", err)
	}
	set("one", "one", nil)
	b := must.Get(OpenWith(t.Context(), srv.URL, o))(t)
	defer b.Close()
	asked = 0
	if _, err := b.Acquire(soon(t), requestFor("job")); err != nil || asked != 0 {
		t.Errorf("asked %d times for a token that is good: %v", asked, err)
	}
	set("two", "one", errVault)
	if _, err := b.Acquire(soon(t), requestFor("job")); !errors.Is(err, driver.ErrUnsent) || driver.Final(err) || !strings.Contains(err.Error(), errVault.Error()) {
		t.Errorf("while the credentials fail: %v", err)
	}
	set("two", "two", nil)
	asked = 0
	const many = 20
	var refused, callers sync.WaitGroup
	refused.Add(many)
	together.Store(&refused)
	for range many {
		callers.Go(func() {
			expect.OK(t, b.Revoke(soon(t), requestFor("job").Hold), "with the next token") // acquires may share a connection
		})
	}
	callers.Wait()
	if asked != 1 {
		t.Errorf("asked %d times for one token", asked)
	}
}

// Open waits no longer for its credentials than for a server.
func TestOpenBoundsCredentials(t *testing.T) {
	t.Parallel()
	bounded := false
	_, err := OpenWith(context.Background(), "http://localhost", &OpenOptions{Credentials: func(ctx context.Context) (string, string, error) {
		_, bounded = ctx.Deadline()
		return "", "", context.DeadlineExceeded
	}})
	if !bounded || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("bounded: %v; %v", bounded, err)
	}
}

// A certificate that is renewed on the disk is used by the next connection; one that has ended is named.
func TestCertificateIsRenewed(t *testing.T) {
	t.Parallel()
	ca := must.Get(testcert.NewAuthority())(t)
	srv := httptest.NewUnstartedServer(newFake(t))
	srv.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.Roots()}
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	defer srv.Close()
	dir := t.TempDir()
	issue := func(end time.Time) (files testcert.Files) {
		t.Helper()
		pair, err := ca.Sign(func(c *x509.Certificate) { c.NotBefore, c.NotAfter = end.Add(-48*time.Hour), end })
		if err == nil {
			files, err = pair.Write(dir)
		}
		must.OK(t, err)
		return files
	}
	files := issue(time.Now().Add(time.Hour))
	b := must.Get(Open(t.Context(), srv.URL+"?ca="+authorityOf(t, srv)+"&cert="+files.Cert+"&key="+files.Key))(t)
	defer b.Close()
	end := time.Now().Add(-time.Hour)
	issue(end)
	srv.CloseClientConnections()
	b.Acquire(soon(t), requestFor("job")) // may have used the connection that was closed
	_, err := b.Acquire(soon(t), requestFor("job"))
	if err == nil || driver.Final(err) || !strings.Contains(err.Error(), files.Cert) || !strings.Contains(err.Error(), end.UTC().Format("2006-01-02")) {
		t.Errorf("with a certificate that has ended: %v", err)
	}
	issue(time.Now().Add(time.Hour))
	expect.OK(t, expect.Err(b.Acquire(soon(t), requestFor("job"))), "with the next certificate")
}

// A file without a token is wrong at Open.
func TestPasswordFile(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "two words"} {
		file := filepath.Join(t.TempDir(), "token")
		must.OK(t, os.WriteFile(file, []byte(text), 0o600))
		if _, err := Open(t.Context(), "http://h/?password_file="+file); !errors.Is(err, driver.ErrInvalid) || strings.Contains(err.Error(), "words") {
			t.Errorf("%q: %v; want ErrInvalid", text, err)
		}
	}
}
